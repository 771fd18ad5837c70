"""Calls that steer the device or memory without reaching the dispatcher.

Streams wait for events, the host waits for the device or for a collective, FSDP resizes a storage to free it. They
are noted among the ops, in order, under names of their own, while a step is watched; what they do is not changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from foretrace.graph import Constant, Value
from foretrace.graph.op import RESIZE
from foretrace.record.communication import c10d
from foretrace.record.outside import leave_as_it_is

if TYPE_CHECKING:
    from foretrace.record.watch import Watch

Describe = Callable[..., "tuple[Value, ...] | None"]


@contextmanager
def noting_side_calls(watch: Watch) -> Iterator[None]:
    """Note side calls on a watch while open.

    >>> from foretrace.record.watch import Watch
    >>> with Watch() as watch:
    ...     _ = torch.zeros(4).untyped_storage().resize_(0)
    >>> watch.ops[-1].name, watch.ops[-1].args  # old storage, new storage, bytes
    ('storage::resize_', (0, 1, 0))
    """
    patched = [_patch(watch, *target) for target in _targets(watch) if hasattr(target[0], target[1])]
    try:
        yield
    finally:
        for owner, attribute, own in reversed(patched):
            if own is None:
                delattr(owner, attribute)
            else:
                setattr(owner, attribute, own)


def _targets(watch: Watch) -> list[tuple[Any, str, str, Describe]]:
    where = watch.surroundings
    events: dict[int, int] = {}

    def event(value: Any) -> Constant:
        return Constant("event", str(events.setdefault(id(value), len(events))))

    def stream(value: Any) -> Constant:
        return Constant("stream", str(where.stream_number(value)))

    def current(value: Any = None) -> Constant:
        return stream(value if value is not None else torch.cuda.current_stream())

    def resized(storage: Any, nbytes: int) -> tuple[Value, ...]:
        return *watch.census.resized(storage, int(nbytes)), int(nbytes)

    cuda = torch.cuda
    targets: list[tuple[Any, str, str, Describe]] = [
        (cuda.Event, "record", "cuda::event_record", lambda e, stream=None: (event(e), current(stream))),
        (cuda.Event, "wait", "cuda::stream_wait_event", lambda e, stream=None: (current(stream), event(e))),
        (cuda.Event, "synchronize", "cuda::event_synchronize", lambda e: (event(e),)),
        (cuda.Stream, "synchronize", "cuda::stream_synchronize", lambda s: (stream(s),)),
        (cuda, "synchronize", "cuda::device_synchronize", lambda device=None: ()),
        (torch.UntypedStorage, "resize_", RESIZE, resized),
    ]
    if c10d is not None:
        targets.append((c10d.Work, "wait", "c10d::wait", lambda w, *_, **__: _some(watch.communication.waited(w))))
    return targets


def _some(value: Value) -> tuple[Value, ...] | None:
    return None if value is None else (value,)


def _patch(watch: Watch, owner: Any, attribute: str, name: str, describe: Describe) -> tuple[Any, str, Any]:
    """Put a call that notes in an attribute's place. Gives what to put back: None where it was inherited."""
    original = getattr(owner, attribute)
    own = vars(owner).get(attribute)  # what getattr gives of a C++ class can't be put back: it has lost its self

    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(*args, **kwargs)
        # Inside a call (fake tensors being made, say) the watch is off the stack: that is no call of the step.
        seen = watch in _get_current_dispatch_mode_stack()
        with watch.unharmed():
            arguments = describe(*args, **kwargs) if seen else None
            if arguments is not None:
                watch.note(name, "", (), {}).args = arguments
        return original(*args, **kwargs)

    leave_as_it_is(call)
    setattr(owner, attribute, call)
    return owner, attribute, own
