"""Search for the fastest sharding plan that fits the memory of the ranks."""

from foretrace.sharding.search.exact import optimality_gap
from foretrace.sharding.search.iterated_local_search import OnProgress, SearchResult, search

__all__ = ["OnProgress", "SearchResult", "optimality_gap", "search"]
