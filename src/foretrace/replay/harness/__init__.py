"""The harness that runs a benchmark. Copied as it is into each one: it needs torch, and nothing of Foretrace."""

MAX_SLOW_HOST = 100.0
"""Largest ``--slow-host``: no host is so many times slower, or faster, than the original's."""
PARENT_VARIABLE = "FORETRACE_PARENT"
"""Environment variable that names the process to end with; unset where a benchmark is run by hand."""
