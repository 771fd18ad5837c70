"""Single-threaded linear algebra in numpy.

The matrices of cost models are small. On a busy machine, threads that wait for each other take ten times as long as
one; and in a container with few of a machine's cores, numpy starts as many threads as the machine has.
"""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

THREADS_VARIABLE = "OPENBLAS_NUM_THREADS"
"""Number of threads that OpenBLAS, with which numpy is built, starts when it is loaded."""
_started_single = False
"""Whether numpy was loaded with one thread."""


def load_numpy() -> None:
    """Load numpy without worker threads: starting and ending them takes longer than all that a command multiplies.

    Nothing changes where numpy is already loaded, or where the user has set the number of threads. Child processes are
    not affected.
    """
    global _started_single
    if "numpy" in sys.modules or THREADS_VARIABLE in os.environ:
        return
    os.environ[THREADS_VARIABLE] = "1"
    try:
        import numpy as np
    finally:
        del os.environ[THREADS_VARIABLE]
    _started_single = "openblas" in str(np.show_config("dicts"))


def single_threaded() -> AbstractContextManager[Any]:
    """A context in which numpy multiplies matrices on one thread.

    >>> import numpy as np
    >>> with single_threaded():
    ...     (np.ones((2, 2)) @ np.ones(2)).tolist()
    [2.0, 2.0]
    """
    return nullcontext() if _started_single else _libraries().limit(limits=1, user_api="blas")


@cache
def _libraries() -> Any:
    """The loaded linear algebra libraries, looked up once."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
