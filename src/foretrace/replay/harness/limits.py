"""What can be asked of a benchmark, by its own options and by Foretrace's."""

MOST_TIMES = 100.0
"""No host is so many times slower, or faster, than the original's."""
