"""Classes of PyTorch that need more than fake tensors: packed sequences, and lazy modules (``torch.nn.LazyLinear``).

Shapes of packed sequences follow from lengths, which PyTorch's C++ code reads from memory. So sizes of batches are real
tensors, whose memory backward and recurrent networks read, and what PyTorch writes into memory by itself when it pads
is done by calls here: the same ones. The uninitialized weights of lazy modules become fake tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.nn.utils import rnn
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import _disable_current_modes

cut: Any = torch.ops.aten.slice.Tensor


def packed(input: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """``aten::_pack_padded_sequence``: fake data, and the real sizes of the batch at each step.

    >>> packed(torch.ones(3, 2, 5), torch.tensor([3, 1]), False)[1]
    tensor([2, 1, 1])
    """
    features = input.shape[2:]
    with no_dispatch(), torch._C.DisableTorchFunction():
        bare = torch.empty(*input.shape[:2], 1)
        data, sizes = torch.ops.aten._pack_padded_sequence(bare, lengths, batch_first)
    return input.new_empty(data.shape[0], *features), sizes


def sizes_of(batch_sizes: Any) -> list[int]:
    """The sizes of the batch at each step, of a real tensor."""
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        sizes: list[int] = batch_sizes.tolist()
    return sizes


def padded(data: Any, batch_sizes: Any, batch_first: bool, padding: float, total: int) -> tuple[Any, Any]:
    """``torch._pad_packed_sequence``: steps of the same size are copied at once."""
    sizes = sizes_of(batch_sizes)
    output = torch.full(
        (total if total > 0 else len(sizes), sizes[0], *data.shape[1:]), padding, dtype=data.dtype, device=data.device
    )
    torch.empty(sizes[0], dtype=torch.int64)  # of lengths
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        lengths = torch.tensor([sum(size > row for size in sizes) for row in range(sizes[0])])
    step = start = 0
    for size, steps in groupby(sizes):
        count = len(list(steps))
        part = cut(data, 0, start, start + size * count)
        place = cut(cut(output, 0, step, step + count), 1, 0, size)
        place.copy_(part.view(count, size, *data.shape[1:]))
        step, start = step + count, start + size * count
    return output.transpose(0, 1) if batch_first else output, lengths


@contextmanager
def packed_sequences() -> Iterator[None]:
    """Let padding find the sizes of packed sequences."""
    original = rnn._VF

    class Functions:
        _pad_packed_sequence = staticmethod(padded)

        def __getattr__(self, name: str) -> Any:
            return getattr(original, name)

    with patch.object(rnn, "_VF", Functions()):
        yield


class FakeWeight(UninitializedParameter, FakeTensor):
    """A fake weight whose shape its module learns from its first input; then it is a fake tensor."""

    cls_to_become = FakeTensor
    shape, __torch_function__ = torch.Tensor.shape, FakeTensor.__torch_function__  # fake kernels ask


class FakeBuffer(UninitializedBuffer, FakeTensor):
    """The same of a buffer."""

    cls_to_become = FakeTensor
    shape, __torch_function__ = torch.Tensor.shape, FakeTensor.__torch_function__  # fake kernels ask


@contextmanager
def lazy_modules() -> Iterator[None]:
    """Let lazy modules be made and initialized on fake tensors."""

    def made(kind: type[FakeTensor], requires_grad: bool, device: Any, dtype: Any) -> Any:
        fake: Any = torch.empty(0, device=device, dtype=dtype).requires_grad_(requires_grad)
        fake.__class__ = kind
        return fake

    def parameter(kind: Any, requires_grad: bool = True, device: Any = None, dtype: Any = None) -> Any:
        fake = made(FakeWeight, requires_grad, device, dtype)
        fake._is_param = True
        return fake

    def buffer(
        kind: Any, requires_grad: bool = False, device: Any = None, dtype: Any = None, persistent: bool = True
    ) -> Any:
        fake = made(FakeBuffer, requires_grad, device, dtype)
        fake.persistent, fake._is_buffer = persistent, True
        return fake

    with (
        patch.object(UninitializedParameter, "__new__", staticmethod(parameter)),
        patch.object(UninitializedBuffer, "__new__", staticmethod(buffer)),
    ):
        yield
