"""Benchmarks from graphs: writing, running and comparing them."""

from foretrace._deprecated import keep_callable

keep_callable(__name__)
