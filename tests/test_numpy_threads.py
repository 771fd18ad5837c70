"""Linear algebra on one thread, and on as many as before afterwards."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_info

from foretrace._numpy_threads import single_threaded


def threads() -> list[int]:
    """Of the library that comes with numpy; others may be loaded too."""
    home = str(Path(np.__file__).parent)
    return [library["num_threads"] for library in threadpool_info() if library["filepath"].startswith(home)]


def test_matrices_are_multiplied_on_one_thread_and_then_on_as_many_as_before() -> None:
    before = threads()
    with single_threaded():
        assert threads() == [1] * len(before)
    assert threads() == before


def test_a_command_loads_numpy_without_threads_and_tells_no_other_process() -> None:
    code = """
import os, sys
from foretrace._numpy_threads import THREADS_VARIABLE, load_numpy, single_threaded
load_numpy()
assert "numpy" in sys.modules and THREADS_VARIABLE not in os.environ
with single_threaded():
    print("threadpoolctl" in sys.modules)
from threadpoolctl import threadpool_info
print([library["num_threads"] for library in threadpool_info()])
"""
    clean = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=clean)
    looked_for, threads = done.stdout.splitlines()
    assert threads == "[1]"
    assert looked_for == "False"


def test_how_many_threads_the_user_says_is_left_alone() -> None:
    code = """
from foretrace._numpy_threads import load_numpy
load_numpy()
import sys
print("numpy" in sys.modules)
"""
    told = {**os.environ, "OPENBLAS_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=told)
    assert done.stdout == "False\n"
