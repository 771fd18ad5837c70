"""Linear algebra on one thread, and on as many as before afterwards."""

from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_info

from foretrace.costs.one_thread import one_thread


def threads() -> list[int]:
    """Of the library that comes with numpy; others may be loaded too."""
    home = str(Path(np.__file__).parent)
    return [library["num_threads"] for library in threadpool_info() if library["filepath"].startswith(home)]


def test_matrices_are_multiplied_on_one_thread_and_then_on_as_many_as_before() -> None:
    before = threads()
    with one_thread():
        assert threads() == [1] * len(before)
    assert threads() == before
