"""Threads that a sketched script starts: they work on fake tensors too, and take turns with the step's.

They load batches as a rule. Their calls are no part of the step, as they are none of a recorded one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import _push_mode

from foretrace.record.guard.side_effects import STARTED_AT

LEFT_OUT = "work of threads is left out: "
"""How the note of threads begins that compute with weights: a part of the step is missing."""
TURN = threading.RLock()
"""Held by the thread whose call is answered: what the modes of a sketch remember is that of one call."""


class _Background(threading.local):
    """What is known of one thread."""

    started_at: str | None = None
    """The line of the script that started it; None of the step's own thread."""


class ScriptThreads:
    """What the threads of a script computed.

    >>> threads = ScriptThreads()
    >>> threads.in_background(()), threads.notes()
    (False, [])
    """

    def __init__(self) -> None:
        self._thread = _Background()
        self._places: dict[str, bool] = {}
        """Lines that started one which computed anything, and whether with weights."""

    def in_background(self, given: Sequence[Any]) -> bool:
        """Whether a call with these arguments is made by such a thread, which is noted then."""
        place = self._thread.started_at
        if place is None:
            return False
        weights = any(isinstance(value, torch.Tensor) and value.requires_grad for value in given)
        self._places[place] = weights or self._places.get(place, False)
        return True

    @contextmanager
    def on_fake_tensors(self, dispatch_modes: Sequence[Any], function_modes: Sequence[Any]) -> Iterator[None]:
        """Let threads that the script starts work under the modes of the sketch, the innermost first."""
        bootstrap = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

        def under_modes(thread: threading.Thread) -> None:
            if thread in STARTED_AT:
                self._thread.started_at = STARTED_AT[thread]
                for mode in dispatch_modes:
                    _push_mode(mode)
                for mode in function_modes:
                    torch.overrides._push_mode(mode)
            bootstrap(thread)

        with patch.object(threading.Thread, "_bootstrap_inner", under_modes):
            yield

    def notes(self) -> list[str]:
        """What the reader should know of them."""
        trains = any(self._places.values())
        places = ", ".join(
            sorted(place for place, with_weights in self._places.items() if place and with_weights is trains)
        )
        where = f" ({places})" if places else ""
        if trains:
            return [f"{LEFT_OUT}threads that the script starts{where} compute with the model's weights"]
        return [f"what threads of the script compute is not part of the step{where}"] if self._places else []
