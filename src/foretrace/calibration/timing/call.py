"""A described call with real arguments, ready to be made."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import torch

from foretrace.graph import Constant, ForetraceError, Indices, Op, Tensor, Value
from foretrace.graph.operators import operator_path
from foretrace.platform.cases import Case, strides
from foretrace.platform.measure.consistent import PREPARE
from foretrace.platform.measure.traced import as_called

TORCH_WORDS = ("dtype", "layout", "memory_format")


class Call:
    """One call, its arguments by position and by name. Calling it makes the call.

    >>> op = Op("aten::mm", (Tensor((2, 3), "float32"), Tensor((3, 4), "float32")), overload="default")
    >>> call = Call(Case(op), torch.device("cpu"))
    >>> call["mat2"].shape, call().shape
    (torch.Size([3, 4]), torch.Size([2, 4]))
    """

    def __init__(self, case: Case, device: Any) -> None:
        self.case = case
        self.device = device
        op = case.op if case.op.overload else as_called(case.op)
        self.function = overload_of(op)
        self.indices: Indices | None = None
        """What can be said of the ids among the arguments, once they are drawn."""
        self._buffers: dict[int, torch.Tensor] = {}
        self._needed = _storage_sizes(op)
        self.names = [argument.name for argument in self.function._schema.arguments]
        self.args = [self._real(value) for value in op.args]
        self.kwargs = {name: self._real(value) for name, value in op.kwargs.items()}
        prepare = PREPARE.get(op.name)
        if prepare:
            prepare(self)

    def __call__(self) -> Any:
        """Make the call; gives what it returns."""
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
            return getattr(torch, value.value) if value.kind in TORCH_WORDS else None
        if isinstance(value, (list, tuple)):
            return [self._real(item) for item in value]
        return value

    def _tensor(self, described: Tensor) -> torch.Tensor:
        dtype = dtype_of(described)
        device = torch.device("cpu") if described.device == "cpu" else self.device
        if described.layout != "strided":
            # Its elements come with the ids: see `consistent`.
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
        """Memory of the host that was written to, so that its pages exist; random numbers would take far longer."""
        return torch.empty(elements, dtype=dtype, pin_memory=self.case.pinned).fill_(1)


def overload_of(op: Op) -> Any:
    """PyTorch's function for an op; one that this PyTorch does not have is said so.

    >>> overload_of(Op("aten::relu", overload="default"))
    <OpOverload(op='aten.relu', overload='default')>
    """
    where = operator_path(op.name, op.overload, namespaces=[op.name.partition("::")[0]])
    if not where:
        raise ForetraceError(f"{op.name}.{op.overload} is not called on a trace's word")
    try:
        return attrgetter(where)(torch.ops)
    except AttributeError:
        raise ForetraceError(f"PyTorch {torch.__version__} has no {op.name}.{op.overload}") from None


def dtype_of(described: Tensor) -> Any:
    """PyTorch's word for the dtype of a tensor; of tensors in lists, profilers do not tell it.

    >>> dtype_of(Tensor((2,), "bfloat16"))
    torch.bfloat16
    """
    dtype = getattr(torch, described.dtype, None) if described.dtype else None
    if not isinstance(dtype, torch.dtype):
        raise ForetraceError(f"a tensor of no known dtype ({described.dtype!r}) is among its arguments")
    return dtype


def filled(elements: int, dtype: Any, device: Any) -> torch.Tensor:
    """Fresh memory with values that are safe everywhere: normal floats, true and false, zeros as integers.

    >>> int(filled(8, torch.int64, "cpu").sum()), filled(8, torch.float32, "cpu").std() > 0
    (0, tensor(True))
    """
    buffer = torch.empty(elements, dtype=dtype, device=device)
    if dtype.is_floating_point:
        # A device computes faster on zeros, since it draws less power.
        return buffer.normal_() if dtype.itemsize > 1 else buffer.copy_(torch.randn(elements, device=device))
    return buffer.random_(2) if dtype == torch.bool else buffer.zero_()


def _storage_sizes(op: Op) -> dict[int, int]:
    """Elements that the tensors of each shared storage reach together."""
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
