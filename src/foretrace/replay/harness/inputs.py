"""Tensors that are there before the step, made from their descriptions."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .contents import Fill
from .files import OF_THE_MACHINE, said
from .host import here


def tensor(shape: Sequence[int], dtype: torch.dtype, device: torch.device, content: Fill) -> torch.Tensor:
    """A tensor with memory of its own."""
    return _filled(torch.empty(shape, dtype=dtype, device=device), content)


def memory(nbytes: int, device: torch.device) -> torch.Tensor:
    """A piece of memory that several tensors look at."""
    return torch.zeros(nbytes, dtype=torch.uint8, device=device)


def view(
    memory: torch.Tensor,
    shape: Sequence[int],
    stride: Sequence[int],
    offset: int,
    dtype: torch.dtype,
    content: Fill,
) -> torch.Tensor:
    """A tensor somewhere in a piece of memory; where it looks at an element twice, both are the same.

    In a piece of no size it holds nothing yet: the step will give that memory its size.
    """
    storage = memory.untyped_storage()
    looking = torch.empty(0, dtype=dtype, device=memory.device)
    if not storage.nbytes():
        reach = offset + 1 + sum((size - 1) * step for size, step in zip(shape, stride)) if all(shape) else 0
        storage.resize_(reach * looking.itemsize)
        looking.set_(storage, offset, shape, stride)
        storage.resize_(0)
        return looking
    looking.set_(storage, offset, shape, stride)
    once = looking
    for dim, step in enumerate(stride):
        if step == 0 and shape[dim] > 1:
            once = once.narrow(dim, 0, 1)
    _filled(once, content)
    return looking


def sparse(
    indices: torch.Tensor | None,
    values: torch.Tensor | None,
    shape: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    """A sparse tensor of these parts; an empty one where nobody knows its parts."""
    if indices is None or values is None:
        return torch.sparse_coo_tensor(torch.Size(shape), dtype=dtype, device=device)
    return torch.sparse_coo_tensor(indices, values, torch.Size(shape), check_invariants=False)


def _filled(tensor: torch.Tensor, content: Fill) -> torch.Tensor:
    """The tensor with a content; with zeros where that does not fit, which is told."""
    if not tensor.numel() or tensor.device.type == "meta":
        return tensor
    with torch.no_grad():
        try:
            content(tensor)
        except (RuntimeError, TypeError, ValueError, OverflowError) as error:
            if any(text in str(error) for text in OF_THE_MACHINE):
                raise
            tensor.zero_()
            shape = list(tensor.shape)
            here.notes.append(f"a tensor of {shape} holds zeros instead of what was asked for: {said(error)}")
    return tensor
