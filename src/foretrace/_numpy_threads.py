"""Linear algebra on one thread.

Nets are small. Where others are busy, threads that wait for each other take ten times as long as one; and in a
container that is given few of a machine's cores, there are as many of them as the machine has.
"""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

STARTED = "OPENBLAS_NUM_THREADS"
"""As many threads numpy's linear algebra starts when it is loaded, where that is OpenBLAS."""
_alone = False
"""Whether it has started none."""


def load_numpy() -> None:
    """Load it without threads beside this one: to start and to end them takes longer than all that a verb multiplies.

    Nothing changes where it is loaded already, or where the user has said how many threads it shall have. Processes
    that this one starts know nothing of that.
    """
    global _alone
    if "numpy" in sys.modules or STARTED in os.environ:
        return
    os.environ[STARTED] = "1"
    try:
        import numpy as np
    finally:
        del os.environ[STARTED]
    _alone = "openblas" in str(np.show_config("dicts"))


def one_thread() -> AbstractContextManager[Any]:
    """As long as it lasts, numpy multiplies matrices on one thread.

    >>> import numpy as np
    >>> with one_thread():
    ...     (np.ones((2, 2)) @ np.ones(2)).tolist()
    [2.0, 2.0]
    """
    return nullcontext() if _alone else _libraries().limit(limits=1, user_api="blas")


@cache
def _libraries() -> Any:
    """Those that are loaded: looked for once."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
