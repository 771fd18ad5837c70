"""Linear algebra on one thread.

Nets are small. Where others are busy, threads that wait for each other take ten times as long as one; and in a
container that is given few of a machine's cores, there are as many of them as the machine has.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from typing import Any


def one_thread() -> AbstractContextManager[Any]:
    """As long as it lasts, numpy multiplies matrices on one thread.

    >>> import numpy as np
    >>> with one_thread():
    ...     (np.ones((2, 2)) @ np.ones(2)).tolist()
    [2.0, 2.0]
    """
    return _libraries().limit(limits=1, user_api="blas")  # type: ignore[no-any-return]


@cache
def _libraries() -> Any:
    """Those that are loaded: looked for once."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
