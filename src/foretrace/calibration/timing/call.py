"""Dispatcher calls made from their descriptions, with real arguments on the measured device.

Profilers leave out the overload of a call and list arguments by name among the others: `resolve_overload` finds an
overload that takes what the trace shows.
"""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from typing import Any

import torch

from foretrace.calibration.timing.arguments import PREPARE
from foretrace.errors import ForetraceError
from foretrace.graph import Constant, Indices, Op, Tensor, Value
from foretrace.graph.operators import operator_path
from foretrace.platform.measurements.cases import Case, strides

TORCH_CONSTANTS = ("dtype", "layout", "memory_format")
"""Kinds of constants that are attributes of the module torch."""
ARGUMENT_TYPES: dict[str, tuple[type, ...]] = {
    "Tensor": (Tensor,),
    "number": (int, float),
    "float": (int, float),
    "int": (int,),
    "bool": (bool,),
    "str": (str,),
}
"""By the type of an argument in a schema: what a trace may hold for it."""
CONSTANT_TYPES = {"dtype": "int", "layout": "int", "memory_format": "int"}
"""Types of constants in schemas; the others are numbers that JSON can't write."""


class Call:
    """A dispatcher call with its arguments by position and by name; calling it makes the call.

    >>> op = Op("aten::mm", (Tensor((2, 3), "float32"), Tensor((3, 4), "float32")), overload="default")
    >>> call = Call(Case(op), torch.device("cpu"))
    >>> call["mat2"].shape, call().shape
    (torch.Size([3, 4]), torch.Size([2, 4]))
    """

    def __init__(self, case: Case, device: Any) -> None:
        self.case = case
        self.device = device
        op = case.op if case.op.overload else resolve_overload(case.op)
        self.function = overload_of(op)
        self.indices: Indices | None = None
        """Statistics of the ids among the arguments, once they are drawn."""
        self._buffers: dict[int, torch.Tensor] = {}
        self._needed = _storage_sizes(op)
        self.names = [argument.name for argument in self.function._schema.arguments]
        self.args = [self._real(value) for value in op.args]
        self.kwargs = {name: self._real(value) for name, value in op.kwargs.items()}
        prepare = PREPARE.get(op.name)
        if prepare:
            prepare(self)

    def __call__(self) -> Any:
        """Make the call, and return its result."""
        return self.function(*self.args, **self.kwargs)

    def __getitem__(self, name: str) -> Any:
        place = self.names.index(name)
        return self.args[place] if place < len(self.args) else self.kwargs.get(name)

    def __setitem__(self, name: str, value: Any) -> None:
        self.args[self.names.index(name)] = value

    def _real(self, value: Value) -> Any:
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, Constant):
            if value.kind == "device":
                return torch.device(value.value) if value.value == "cpu" else self.device
            if value.kind == "float":
                return float(value.value)
            return getattr(torch, value.value) if value.kind in TORCH_CONSTANTS else None
        if isinstance(value, (list, tuple)):
            return [self._real(item) for item in value]
        return value

    def _tensor(self, described: Tensor) -> torch.Tensor:
        dtype = dtype_of(described)
        device = torch.device("cpu") if described.device == "cpu" else self.device
        if described.layout != "strided":
            # Its elements are filled in with the ids, by `PREPARE`.
            return torch.sparse_coo_tensor(size=described.shape, dtype=dtype, device=device, check_invariants=False)
        stride = described.stride if described.stride is not None else strides(described.shape)
        buffer = self._buffers.get(described.storage)
        if buffer is None:
            elements = self._needed.get(described.storage) or _reach(described)
            buffer = filled(elements, dtype, device) if device == self.device else self._on_host(elements, dtype)
            if described.storage >= 0:
                self._buffers[described.storage] = buffer
        return buffer.as_strided(described.shape, stride, described.offset)

    def _on_host(self, elements: int, dtype: Any) -> torch.Tensor:
        """Host memory that was written to, so that its pages exist; random numbers would take far longer."""
        return torch.empty(elements, dtype=dtype, pin_memory=self.case.pinned).fill_(1)


def overload_of(op: Op) -> Any:
    """PyTorch's function for an op.

    >>> overload_of(Op("aten::relu", overload="default"))
    <OpOverload(op='aten.relu', overload='default')>
    """
    where = operator_path(op.name, op.overload, namespaces=[op.name.partition("::")[0]])
    if not where:
        raise ForetraceError(f"{op.name}.{op.overload} is not an operator that a trace may name")
    try:
        return attrgetter(where)(torch.ops)
    except AttributeError:
        raise ForetraceError(f"PyTorch {torch.__version__} has no {op.name}.{op.overload}") from None


def dtype_of(described: Tensor) -> Any:
    """PyTorch's dtype of a tensor; profilers leave it out for tensors in lists.

    >>> dtype_of(Tensor((2,), "bfloat16"))
    torch.bfloat16
    """
    dtype = getattr(torch, described.dtype, None) if described.dtype else None
    if not isinstance(dtype, torch.dtype):
        raise ForetraceError(f"a tensor of no known dtype ({described.dtype!r}) is among its arguments")
    return dtype


def filled(elements: int, dtype: Any, device: Any) -> torch.Tensor:
    """New memory with values that any call takes: normal floats, random booleans, zero integers.

    >>> int(filled(8, torch.int64, "cpu").sum()), filled(8, torch.float32, "cpu").std() > 0
    (0, tensor(True))
    """
    buffer = torch.empty(elements, dtype=dtype, device=device)
    if dtype.is_floating_point or dtype.is_complex:
        # A device computes faster on zeros, since it draws less power.
        return buffer.normal_() if dtype.itemsize > 1 else buffer.copy_(torch.randn(elements, device=device))
    return buffer.random_(2) if dtype == torch.bool else buffer.zero_()


def _storage_sizes(op: Op) -> dict[int, int]:
    """Elements of each shared storage, up to the last one that any of its tensors touches."""
    sizes: dict[int, int] = {}
    for tensor in op.tensors:
        if tensor.storage >= 0:
            sizes[tensor.storage] = max(sizes.get(tensor.storage, 0), _reach(tensor))
    return sizes


def _reach(tensor: Tensor) -> int:
    """Elements from the start of the storage to the last one the tensor touches."""
    if not tensor.numel:
        return tensor.offset
    stride = tensor.stride if tensor.stride is not None else strides(tensor.shape)
    return tensor.offset + 1 + sum((size - 1) * step for size, step in zip(tensor.shape, stride))


def resolve_overload(op: Op) -> Op:
    """The call with an overload that takes its arguments, by position or by name as that overload takes them.

    An argument that the trace leaves out gets its default; where it has none, the call can't be made.
    """
    for overload, schema in _schemas(op):
        taken = _taken(op, schema.arguments)
        if taken is not None:
            args, kwargs = taken
            return replace(op, overload=overload, args=args, kwargs=kwargs)
    raise ForetraceError(f"PyTorch {torch.__version__} has no {op.name} that takes the arguments in the trace")


def _schemas(op: Op) -> list[tuple[str, Any]]:
    """The overloads of an operator without those with ``out`` arguments: a profiler shows the calls that these make."""
    where = operator_path(op.name, "", namespaces=[op.name.partition("::")[0]])
    try:
        packet = attrgetter(where)(torch.ops) if where else None
    except AttributeError:  # of a library that is not loaded
        return []
    schemas = [(name, getattr(packet, name)._schema) for name in packet.overloads()] if packet else []
    return [(name, schema) for name, schema in schemas if not any(one.is_out for one in schema.arguments)]


def _taken(op: Op, wanted: list[Any]) -> tuple[tuple[Value, ...], dict[str, Value]] | None:
    """The arguments of a call as an overload takes them, by position and by name; None where it does not take them."""
    given = {**dict(zip((one.name for one in wanted), op.args)), **op.kwargs}
    known = {one.name: given[one.name] for one in wanted if _is_known(given.get(one.name)) and not _is_device(one)}
    fits = all(_fits(known[one.name], str(one.type)) if one.name in known else _may_be_unknown(one) for one in wanted)
    if len(op.args) > len(wanted) or not fits:
        return None
    args = tuple(known.get(one.name, one.default_value) for one in wanted if not one.kwarg_only)
    return args, {one.name: known[one.name] for one in wanted if one.kwarg_only and one.name in known}


def _is_known(value: Value) -> bool:
    return value is not None and not (isinstance(value, Constant) and value.kind == "object")


def _is_device(argument: Any) -> bool:
    """Whether an argument is a device: the measured one is taken."""
    return "Device" in str(argument.type)


def _may_be_unknown(argument: Any) -> bool:
    return argument.has_default_value() or str(argument.type).startswith("Optional[")


def _fits(value: Value, kind: str) -> bool:
    """Whether a value is of a type as schemas write it."""
    outer, _, inner = kind.removesuffix("]").partition("[")
    if outer == "Optional":
        return _fits(value, inner)
    if outer == "List":
        return isinstance(value, (list, tuple)) and all(item is None or _fits(item, inner) for item in value)
    if isinstance(value, Constant):
        return kind == CONSTANT_TYPES.get(value.kind, "number")
    return isinstance(value, ARGUMENT_TYPES.get(kind, ()))
