"""Arguments of calls that a profiler leaves out, deduced from the rest of its trace.

PyTorch's profiler writes the shapes of the tensors in a list, as `torch.cat` has them, but not their dtypes; and of no
tensor where it lies; and not whether GEMMs of float32 may use TF32. The first follows from calls nearby that have
tensors of these shapes, the others from the kernels that ran.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from foretrace.graph import Constant, Op, Tensor, Value
from foretrace.graph.operators import GEMMS
from foretrace.graph.tables import KernelTable, distinct

OLD_GRADIENTS = ("aten::cudnn_convolution_backward", "aten::miopen_convolution_backward")
"""What autograd called for a convolution before PyTorch 1.11."""
TO_DEVICE, TO_HOST = "Memcpy HtoD", "Memcpy DtoH"
COPY, CONVERSION = "aten::copy_", "aten::_to_copy"
HOST, DEVICE = "cpu", "cuda:0"
TF32_KERNELS = ("tf32", "s1688", "s16816")
"""Pieces of the names of kernels that multiply float32 on Tensor Cores."""


def deduce_list_dtypes(ops: Sequence[Op]) -> None:
    """Give a dtype to the tensors in lists that have none, in place.

    It is that of the last tensor of the same shape in an earlier call, or else of the last floating-point one.

    >>> half, rotated = Tensor((2, 8), "bfloat16"), [Tensor((2, 8), ""), Tensor((2, 4), "")]
    >>> calls = [Op("aten::neg", (half,)), Op("aten::cat", (rotated, -1))]
    >>> deduce_list_dtypes(calls)
    >>> [each.dtype for each in calls[1].tensors]
    ['bfloat16', 'bfloat16']
    """
    if not any(_lacks_dtypes(value) for op in ops for value in op.args):
        return
    seen: dict[tuple[int, ...], Tensor] = {}
    recent = ""
    for op in ops:
        op.args = tuple(_completed(value, seen, recent) for value in op.args)
        for tensor in op.tensors:
            if tensor.dtype and tensor.shape:
                seen[tensor.shape] = tensor
                recent = tensor.dtype if "float" in tensor.dtype else recent


def _lacks_dtypes(value: Value) -> bool:
    """Whether an argument is a list of tensors that have shapes and no dtypes."""
    return isinstance(value, list) and any(isinstance(each, Tensor) and each.shape and not each.dtype for each in value)


def _completed(value: Value, seen: Mapping[tuple[int, ...], Tensor], recent: str) -> Value:
    """An argument whose tensors, if it is a list of them, have the dtypes and layouts of those like them."""
    if not isinstance(value, list) or not _lacks_dtypes(value):
        return value
    found: list[Value] = []
    for each in value:
        if isinstance(each, Tensor) and not each.dtype:
            alike = seen.get(each.shape, Tensor(each.shape, recent))
            each = replace(each, dtype=alike.dtype, stride=alike.stride)
        found.append(each)
    return found


def rename_old_gradients(ops: Sequence[Op]) -> None:
    """Give gradients of convolutions in traces of old versions the name and the arguments of today, in place.

    Such traces have no strides, nor whether a convolution is transposed: it is not, and the strides of it and of its
    gradient follow from the sizes of both.

    >>> x, grad, weight = (Tensor(shape, "float32") for shape in ((8, 3, 9, 9), (8, 4, 5, 5), (4, 3, 3, 3)))
    >>> unknown = [Constant("object", "GenericList")] * 3
    >>> forward = Op("aten::convolution", (x, weight, None, *unknown, False, None, 1))
    >>> backward = Op("aten::cudnn_convolution_backward", (x, grad, weight, *unknown, 1, False, False, True, None))
    >>> rename_old_gradients([forward, backward])
    >>> backward.name, backward.tensors[0].shape, backward.args[4], forward.args[3:5]
    ('aten::convolution_backward', (8, 4, 5, 5), [2, 2], ([2, 2], [1, 1]))
    """
    deduced: dict[tuple[tuple[int, ...], ...], list[Value]] = {}
    for op in ops:
        if op.name not in OLD_GRADIENTS or len(op.args) < 7:
            continue
        given, grad, weight, padding, stride, dilation, groups = op.args[:7]
        if not (isinstance(given, Tensor) and isinstance(grad, Tensor) and isinstance(weight, Tensor)):
            continue
        if not isinstance(stride, list):
            stride, padding = _strides(given.shape[2:], grad.shape[2:], weight.shape[2:])
            deduced[given.shape, weight.shape] = [stride, padding]
        mask = op.args[-1] if isinstance(op.args[-1], list) else None
        op.name = "aten::convolution_backward"
        op.args = (grad, given, weight, None, stride, padding, dilation, False, [0, 0], groups, mask)
    for op in ops if deduced else ():
        if op.name == "aten::convolution" and len(op.args) > 6 and not isinstance(op.args[3], list):
            found = deduced.get((op.tensors[0].shape, op.tensors[1].shape))
            op.args = (*op.args[:3], *found, op.args[5], False, *op.args[7:]) if found else op.args


def _strides(given: Sequence[int], made: Sequence[int], kernel: Sequence[int]) -> tuple[Value, Value]:
    """The stride of a convolution between two sizes, and its padding: as much as keeps them at a stride of one."""
    return [-(-size // max(1, less)) for size, less in zip(given, made)], [(size - 1) // 2 for size in kernel]


def deduce_copied_memory(ops: Sequence[Op], kernels: KernelTable) -> None:
    """Say which tensors of copies lie on the host, in place, by the direction in which their kernels copied."""
    for text, to_device in ((TO_DEVICE, True), (TO_HOST, False)):
        named = kernels.names.matching(partial(_begins, text))
        if not named.any():
            continue
        for row in distinct(kernels.op[named[kernels.name] & (kernels.op >= 0)]).tolist():
            _set_memory(ops[row], to_device)


def _begins(text: str, name: str) -> bool:
    return name.startswith(text)


def _set_memory(op: Op, to_device: bool) -> None:
    source, target = (HOST, DEVICE) if to_device else (DEVICE, HOST)
    places = (target, source) if op.name == COPY else (source,) if op.name == CONVERSION else ()
    tensors = op.args[: len(places)]
    unplaced = [each for each in tensors if isinstance(each, Tensor) and not each.device]
    if not places or len(unplaced) < len(places):  # without shapes, a call has no arguments
        return
    placed = [replace(each, device=place) for each, place in zip(unplaced, places)]
    op.args = (*placed, *op.args[len(places) :])
    if op.name == CONVERSION:
        op.kwargs = {"device": Constant("device", target), **op.kwargs}
        op.outputs = op.outputs or (replace(placed[0], device=target),)


def uses_tf32(ops: Sequence[Op], kernels: KernelTable) -> bool:
    """Whether the kernel of some GEMM of float32 rounds its operands to TF32."""
    named = kernels.names.matching(lambda name: any(piece in name for piece in TF32_KERNELS))
    if not named.any():
        return False
    rows = distinct(kernels.op[named[kernels.name] & (kernels.op >= 0)]).tolist()
    return any(
        ops[row].name in GEMMS and all(tensor.dtype == "float32" for tensor in ops[row].tensors if tensor.shape)
        for row in rows
    )
