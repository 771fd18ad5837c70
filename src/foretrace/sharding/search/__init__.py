"""Search for the fastest sharding plan that fits the memory of the ranks."""

from foretrace.sharding.search.iterated_local_search import SearchResult, search

__all__ = ["SearchResult", "search"]
