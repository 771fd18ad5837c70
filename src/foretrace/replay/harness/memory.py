"""Memory of a step: counted by storage, checked before anything is allocated, and limited while it runs.

No call may take much more than the recording says: its bytes are worked out on the meta device before it is made.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .host import runtime, tensors_in
from .report import format_bytes


class DispatchMode(TorchDispatchMode):
    """A dispatch mode for processes that compile nothing.

    PyTorch's own imports the compiler only to disable it, which takes half the time of a short replay.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class Storages(DispatchMode):
    """Tracks the bytes of live storages, and their peak.

    >>> with Storages() as storages:
    ...     x = torch.zeros(256); del x; y = torch.zeros(512)
    >>> storages.peak
    2048
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak: int = 0
        self._held: int = 0
        self._living: dict[int, weakref.ref[Any]] = {}
        self._sizes: dict[int, int] = {}

    def __enter__(self) -> Storages:
        runtime.on_resize = self.resized
        super().__enter__()
        return self

    def __exit__(self, *problem: Any) -> None:
        runtime.on_resize = None
        super().__exit__(*problem)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.see(result)
        return result

    def see(self, value: Any) -> None:
        """Count the new storages of a value."""
        for tensor in tensors_in(value):
            if tensor.layout != torch.strided:
                continue
            storage = tensor.untyped_storage()
            known = self._living.get(storage._cdata)
            if known is None or known() is None:
                self._living[storage._cdata] = weakref.ref(storage, partial(self._died, storage._cdata))
                self._hold(storage._cdata, storage.nbytes())

    def resized(self, storage: torch.UntypedStorage, nbytes: int) -> None:
        """Follow a storage that was given another size."""
        if storage._cdata in self._living:
            self._hold(storage._cdata, nbytes)

    def _hold(self, key: int, nbytes: int) -> None:
        self._held += nbytes - self._sizes.get(key, 0)
        self._sizes[key] = nbytes
        self.peak = max(self.peak, self._held)

    def _died(self, key: int, ref: Any) -> None:
        if self._living.get(key) is ref:
            self._hold(key, 0)
            del self._living[key], self._sizes[key]


try:
    import resource
except ImportError:  # no such limits on this system
    resource = None  # type: ignore[assignment]
LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Files with the memory limit of a container."""
LIBRARY_BYTES, THREAD_BYTES = 1 << 30, 32 << 20
"""Bytes that libraries take for themselves, and bytes per thread: its stack and its allocation arena."""
OUT_OF_MEMORY = ("allocate", "memory", "bad_alloc", "primitive")
"""Parts of the errors raised where memory ran out; oneDNN's says no more than "primitive"."""


def check_fits(memory: dict[str, Any], kind: str, ranks: int = 1) -> None:
    """Raise a MemoryError where the step of that many ranks does not fit; its message says what would.

    ``memory`` has the bytes of the ``peak``, those that are ``lasting`` whatever the batch, and the ``batch`` or None.

    >>> check_fits({"peak": 1024, "lasting": 512, "batch": 8}, "cpu")
    """
    free, peak = free_bytes(kind), memory["peak"]
    if free is None or peak * ranks <= free:
        return
    each = f" on each of {ranks} ranks" if ranks > 1 else ""
    batch = _fitting_batch(memory, free // ranks)
    lasting = "" if batch else f", {format_bytes(memory['lasting'])} of it in any batch"
    fewer = [f"--ranks {free // peak}"] if peak <= free else []
    raise MemoryError(
        f"the step needs {format_bytes(peak)} at its peak{each}{lasting}, and {format_bytes(free)} are free on this "
        f"{kind}; what would fit: {', '.join([*batch, *fewer, '--device meta'])}"
    )


def _fitting_batch(memory: dict[str, Any], free: int) -> list[str]:
    """The largest batch that fits, as advice; empty where not even one sample does.

    >>> _fitting_batch({"peak": 100, "lasting": 20, "batch": 64}, 60)
    ['--batch 32 (it is 64)']
    >>> _fitting_batch({"peak": 100, "lasting": 20, "batch": None}, 60), _fitting_batch({"peak": 9, "lasting": 8}, 5)
    (["a batch of 50 % of the original's"], [])
    """
    spare, growing = free - memory["lasting"], memory["peak"] - memory["lasting"]
    batch = memory.get("batch")
    if spare <= 0 or spare * (batch or 100) < growing:
        return []
    share = spare * (batch or 100) // growing
    return [f"--batch {share} (it is {batch})" if batch else f"a batch of {share} % of the original's"]


def free_bytes(kind: str) -> int | None:
    """Free bytes on a kind of device; None where there is no limit, or it is unknown."""
    if kind == "cuda" and torch.cuda.is_available():
        return int(torch.cuda.mem_get_info()[0])
    if kind == "cpu" and "SC_AVPHYS_PAGES" in os.sysconf_names:
        free = _proc_bytes("meminfo", "MemAvailable")
        found = [os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if free is None else free]
        for path in LIMITS:
            with suppress(OSError, ValueError):  # another kind of machine; "max", which is no limit
                found.append(int(Path(path).read_text()))
        return min(found)
    return None


def _proc_bytes(file: str, field: str) -> int | None:
    """Bytes that a line of a file in /proc says; None where there is none."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc", file).read_text().splitlines())
        return int(lines[field].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None


def is_out_of_memory(error: Exception) -> bool:
    """Whether a call may have failed for lack of memory.

    >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory")), is_out_of_memory(KeyError("t1"))
    (True, False)
    """
    return isinstance(error, MemoryError) or any(text in str(error) for text in OUT_OF_MEMORY)


@contextmanager
def memory_limit(nbytes: int, kind: str) -> Iterator[bool]:
    """Limit the process to that many bytes more, plus what libraries need; yields False where that is not possible.

    On a GPU, the limit is on GPU memory alone.
    """
    if kind == "cuda":
        total = torch.cuda.mem_get_info()[1]
        limit = torch.cuda.memory_reserved() + nbytes + LIBRARY_BYTES
        torch.cuda.set_per_process_memory_fraction(min(limit / total, 1.0))
        try:
            yield True
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        return
    taken = _data_bytes()
    if taken is None or kind != "cpu":
        yield False
        return
    torch.ones(1 << 20).add_(1)  # starts the threads: under the limit, failing to start one would end the process
    before = resource.getrlimit(resource.RLIMIT_DATA)
    limit = taken + nbytes + LIBRARY_BYTES + THREAD_BYTES * torch.get_num_threads()
    others = [limit for limit in before if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min([limit, *others]), before[1]))
    try:
        yield True
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def limit_to_free_memory(ranks: int = 1) -> None:
    """Limit this process to the free memory, or to its share among that many ranks."""
    taken, free = _data_bytes(), free_bytes("cpu")
    if taken is None or free is None:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = taken + free // ranks + THREAD_BYTES * torch.get_num_threads()
    resource.setrlimit(resource.RLIMIT_DATA, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def _data_bytes() -> int | None:
    """Bytes of this process's data segment; None where it can't be limited."""
    return None if resource is None or sys.platform != "linux" else _proc_bytes("self/status", "VmData")


SPARE_BYTES = 256 << 20
"""Bytes that calls may take beyond what the recording says: composite operators need some for intermediate results."""
META = torch.device("meta")
Seen = dict[int, tuple[torch.Tensor, torch.Tensor]]
"""By id, tensors and their counterparts on the meta device."""
GROWING = ("resize", "set_", "_resize")
"""First parts of the names of operators that resize their arguments."""


class TooLargeError(RuntimeError):
    """A call that would allocate more than the recording says, and more than there is to spare."""


class BoundedStorages(Storages):
    """Tracks storages, and refuses a call that makes more than is ``declared`` once more than the limit is held.

    ``spare`` bytes may be held besides the ``first`` tensors. With a ``kind`` of device, only calls there are checked.

    >>> with BoundedStorages(spare=1000) as bounded:
    ...     torch.zeros(10**12)
    Traceback (most recent call last):
    ...
    foretrace.replay.harness.memory.TooLargeError: it would make 3.6 TiB, and the recording says 0.0 B
    """

    def __init__(
        self, spare: int, declared: Callable[[], int] = lambda: 0, first: Sequence[torch.Tensor] = (), kind: str = ""
    ) -> None:
        super().__init__()
        self.see(first)
        self._limit = self._held + spare
        self._declared = declared
        self._kind = kind

    def __enter__(self) -> BoundedStorages:
        runtime.on_allocate = self.allow
        super().__enter__()
        return self

    def __exit__(self, *problem: Any) -> None:
        runtime.on_allocate = None
        super().__exit__(*problem)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [*args, *(kwargs or {}).values()]
        named = {value.type for value in given if isinstance(value, torch.device)}
        if not self._kind or self._kind in (named or {tensor.device.type for tensor in tensors_in(given)} or {"cpu"}):
            self.allow(bytes_made(func, args, kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)

    def allow(self, nbytes: int) -> None:
        """Raise a `TooLargeError` if that many bytes more are too many."""
        if self._held + nbytes <= self._limit:
            return
        declared = self._declared()
        if nbytes > declared:
            says = f"the recording says {format_bytes(declared)}"
            raise TooLargeError(f"it would make {format_bytes(nbytes)}, and {says}")


def bytes_made(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    """Bytes that an operator would allocate for its results; 0 where that is unknown without calling it.

    >>> bytes_made(torch.ops.aten.add.Tensor, (torch.zeros(10, 1), torch.zeros(1, 20)), {})
    800
    >>> bytes_made(torch.ops.aten.t.default, (torch.zeros(10, 1),), {})
    0
    """
    schema = getattr(func, "_schema", None)
    if schema is None or _allocates_nothing(schema):
        return 0
    if schema.name in SIZED_BY_VALUES:
        return SIZED_BY_VALUES[schema.name](*args, **kwargs)
    seen: Seen = {}
    try:
        given = [_on_meta(arg, seen) for arg in args]
        named = {name: _on_meta(arg, seen) for name, arg in kwargs.items() if name != "pin_memory"}
        if any(argument.name == "device" for argument in schema.arguments) and not seen:
            named["device"] = META
        # Sizes of the real storages: a tensor whose resize failed already has the larger shape.
        before = {meta.untyped_storage()._cdata: real.untyped_storage().nbytes() for real, meta in seen.values()}
        after = tensors_in((func(*given, **named), [meta for _, meta in seen.values()]))
        made = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in after}
        return sum(max(nbytes - before.get(key, 0), 0) for key, nbytes in made.items())
    except Exception:  # sizes that depend on data, sparse tensors, operators without a meta kernel
        return 0


def _allocates_nothing(schema: Any) -> bool:
    """Whether an operator returns nothing but its arguments or views of them."""
    name = str(schema.name).partition("::")[2]
    in_place = name.endswith("_") or not schema.is_mutable
    returned = all(result.alias_info is not None for result in schema.returns)
    return returned and in_place and not name.startswith(GROWING)


def _on_meta(value: Any, seen: Seen) -> Any:
    """The value with its tensors on the meta device; a tensor always has the same counterpart."""
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


SIZED_BY_VALUES: dict[str, Callable[..., int]] = {
    "aten::bincount": lambda ids, weights=None, minlength=0: 8 * max(ids.numel() and int(ids.max()) + 1, minlength),
    "aten::repeat_interleave": lambda repeats, *_, **__: 8 * int(repeats.double().sum()),
}
"""Bytes of the results of operators that values of their arguments decide."""
