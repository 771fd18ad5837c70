"""Looking at the calls of a step."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


class Mode(TorchDispatchMode):
    """Sees every call, in a process that compiles nothing.

    PyTorch's own mode tells its compiler to keep out, and imports it for that: half the time of a short replay.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
