"""No call takes more memory than the recording says: what it would make is worked out before it is made.

A recording is data from anywhere. The step is refused where the sizes that it declares do not fit; but a call makes
what its arguments say, whatever the recording declares of its results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from .host import here
from .measure import Storages
from .room import size

SPARE = 256 << 20
"""Bytes that calls may take beyond what the recording says: operators that are made of others need some between."""
META = torch.device("meta")
Seen = dict[int, tuple[torch.Tensor, torch.Tensor]]
"""Tensors and what stands for them without memory."""
GROWING = ("resize", "set_", "_resize")
"""How the names of operators begin that give what they get another size."""


class TooLargeError(RuntimeError):
    """A call that would make more than the recording says, and more than there is to spare."""


class Bounded(Storages):
    """Adds up what calls make, and refuses one that makes more than it declares, once more than the limit is held.

    Parameters
    ----------
    spare
        Bytes that may be held besides what is there first.
    declared
        Bytes that the call in progress makes according to the recording.
    first
        Tensors that are there before the first call.
    kind
        Only what is made on this kind of device is worked out beforehand; everything where it is left out.

    >>> with Bounded(spare=1000) as bounded:
    ...     torch.zeros(10**12)
    Traceback (most recent call last):
    ...
    foretrace.replay.harness.bounds.TooLargeError: it would make 3.6 TiB, and the recording says 0.0 B
    """

    def __init__(
        self,
        spare: int,
        declared: Callable[[], int] = lambda: 0,
        first: Sequence[torch.Tensor] = (),
        kind: str = "",
    ) -> None:
        super().__init__()
        self.see(first)
        self._most = self._held + spare
        self._declared = declared
        self._kind = kind

    def __enter__(self) -> Bounded:
        here.allow = self.allow
        super().__enter__()
        return self

    def __exit__(self, *problem: Any) -> None:
        here.allow = None
        super().__exit__(*problem)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self._kind or self._kind in _kinds(args, kwargs or {}):
            self.allow(bytes_made(func, args, kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)

    def allow(self, nbytes: int) -> None:
        """Raise a `TooLargeError` where so many bytes more are too many."""
        if self._held + nbytes <= self._most:
            return
        declared = self._declared()
        if nbytes > declared:
            raise TooLargeError(f"it would make {size(nbytes)}, and the recording says {size(declared)}")


def _kinds(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> set[str]:
    """The devices that a call may make something on."""
    asked = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.device)]
    if asked:
        return {device.type for device in asked}
    tensors = list[torch.Tensor]()
    pending = [*args, *kwargs.values()]
    for value in pending:  # grows meanwhile
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, (list, tuple)):
            pending += value
    return {tensor.device.type for tensor in tensors} or {"cpu"}


def bytes_made(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    """Bytes of new memory that the results of an operator take; 0 where nobody can tell without calling it.

    >>> bytes_made(torch.ops.aten.add.Tensor, (torch.zeros(10, 1), torch.zeros(1, 20)), {})
    800
    >>> bytes_made(torch.ops.aten.t.default, (torch.zeros(10, 1),), {})
    0
    """
    schema = getattr(func, "_schema", None)
    if schema is None or _makes_nothing(schema):
        return 0
    if schema.name in SIZED_BY_VALUES:
        return SIZED_BY_VALUES[schema.name](*args, **kwargs)
    seen: Seen = {}
    try:
        given = [_on_meta(arg, seen) for arg in args]
        named = {name: _on_meta(arg, seen) for name, arg in kwargs.items() if name != "pin_memory"}
        if any(argument.name == "device" for argument in schema.arguments) and not seen:
            named["device"] = META
        # As large as they are: one whose growing failed already has the shape that it was to have.
        before = {meta.untyped_storage()._cdata: real.untyped_storage().nbytes() for real, meta in seen.values()}
        made = _storages((func(*given, **named), [meta for _, meta in seen.values()]))
        return sum(max(nbytes - before.get(key, 0), 0) for key, nbytes in made.items())
    except Exception:  # data that decide, sparse tensors, operators that meta tensors do not know
        return 0


def _makes_nothing(schema: Any) -> bool:
    """Whether all that an operator returns is what it got."""
    name = str(schema.name).partition("::")[2]
    in_place = name.endswith("_") or not schema.is_mutable
    returned = all(result.alias_info is not None for result in schema.returns)
    return returned and in_place and not name.startswith(GROWING)


def _on_meta(value: Any, seen: Seen) -> Any:
    """The value with tensors that have no memory; of one tensor, always the same."""
    if isinstance(value, torch.Tensor):
        if id(value) not in seen:
            meta = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=META)
            seen[id(value)] = value, meta
        return seen[id(value)][1]
    if isinstance(value, (list, tuple)):
        return [_on_meta(item, seen) for item in value]
    if isinstance(value, torch.device):
        return META
    return None if isinstance(value, torch.Generator) else value


def _storages(values: Any) -> dict[int, int]:
    """Bytes of each storage behind the tensors in some values."""
    found: dict[int, int] = {}
    for value in values:
        if isinstance(value, torch.Tensor):
            found[value.untyped_storage()._cdata] = value.untyped_storage().nbytes()
        elif isinstance(value, (list, tuple)):
            found |= _storages(value)
    return found


def _counts(given: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0) -> int:
    return 8 * max(int(given.max()) + 1 if given.numel() else 0, minlength)


def _repeats(repeats: torch.Tensor, *more: Any, **named: Any) -> int:
    return 8 * int(repeats.double().sum())


SIZED_BY_VALUES: dict[str, Callable[..., int]] = {
    "aten::bincount": _counts,
    "aten::repeat_interleave": _repeats,
}
"""Operators whose results are as large as numbers in their arguments say."""
