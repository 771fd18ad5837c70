"""Calls that return only when the device has done what it was given so far, told from their arguments."""

from __future__ import annotations

from foretrace.graph.op import Op

READS_A_VALUE = frozenset({
    "aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero", "aten::nonzero", "aten::masked_select",
    "aten::_unique", "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive", "aten::bincount",
    "aten::_coalesce", "aten::repeat_interleave",
})  # fmt: skip
"""Calls whose result or size the host must know before it goes on."""
COPIES = ("aten::copy_", "aten::_to_copy")
BY_MASK = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")
WAITING = READS_A_VALUE.union(COPIES, BY_MASK)
SYNCHRONIZE = ("cuda::device_synchronize", "cuda::stream_synchronize", "cuda::event_synchronize")
MASKS = ("bool", "uint8")


def waits_for_device(op: Op) -> bool:
    """Whether a call returns only when the device has done what it was given so far.

    >>> from foretrace.graph import Tensor
    >>> waits_for_device(Op("aten::_local_scalar_dense", (Tensor((), "float32", "cuda:0"),)))
    True
    >>> waits_for_device(Op("aten::_local_scalar_dense", (Tensor((), "float32", "cpu"),)))
    False
    """
    if op.name in READS_A_VALUE:
        return any(on_device(tensor.device) for tensor in op.tensors)
    if op.name in COPIES:
        return _crosses(op) and not _non_blocking(op) and all(tensor.numel for tensor in op.tensors)
    if op.name in BY_MASK:
        return any(t.dtype in MASKS and on_device(t.device) for t in op.tensors[1:])
    return False


def on_device(device: str) -> bool:
    """Whether a tensor's device is none of the host's.

    >>> on_device("cuda:0"), on_device("cpu"), on_device("")
    (True, False, False)
    """
    return bool(device) and not device.startswith(("cpu", "meta"))


def _crosses(op: Op) -> bool:
    """Whether a copy goes from the host to a device or back."""
    sides = {on_device(t.device) for t in (*op.tensors, *op.produced) if t.device}
    return len(sides) == 2


def _non_blocking(op: Op) -> bool:
    flag = op.kwargs.get("non_blocking", op.args[2] if op.name == "aten::copy_" and len(op.args) > 2 else False)
    return bool(flag)
