"""Input tensors of a step, made from their descriptions: storages, views, and the values that fill them.

To add a kind of content, add a function that fills a tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec

import torch

from .files import MACHINE_ERRORS, summarize_error
from .host import runtime


def tensor(shape: Sequence[int], dtype: torch.dtype, device: torch.device, content: Fill) -> torch.Tensor:
    """A tensor with memory of its own."""
    return _filled(torch.empty(shape, dtype=dtype, device=device), content)


def memory(nbytes: int, device: torch.device) -> torch.Tensor:
    """A storage that several tensors share."""
    return torch.zeros(nbytes, dtype=torch.uint8, device=device)


def view(
    memory: torch.Tensor, shape: Sequence[int], stride: Sequence[int], offset: int, dtype: torch.dtype, content: Fill
) -> torch.Tensor:
    """A view of a shared storage; elements of expanded dimensions are filled once.

    A storage of no size stays empty: the step will resize it.
    """
    storage = memory.untyped_storage()
    seen = torch.empty(0, dtype=dtype, device=memory.device)
    if not storage.nbytes():
        reach = offset + 1 + sum((size - 1) * step for size, step in zip(shape, stride)) if all(shape) else 0
        storage.resize_(reach * seen.itemsize)
        seen.set_(storage, offset, shape, stride)
        storage.resize_(0)
        return seen
    seen.set_(storage, offset, shape, stride)
    once = seen
    for dim, step in enumerate(stride):
        if step == 0 and shape[dim] > 1:
            once = once.narrow(dim, 0, 1)
    _filled(once, content)
    return seen


def sparse(
    indices: torch.Tensor | None,
    values: torch.Tensor | None,
    shape: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    """A sparse tensor of these parts; an empty one where they are unknown."""
    if indices is None or values is None:
        return torch.sparse_coo_tensor(torch.Size(shape), dtype=dtype, device=device)
    return torch.sparse_coo_tensor(indices, values, torch.Size(shape), check_invariants=False)


def _filled(tensor: torch.Tensor, content: Fill) -> torch.Tensor:
    """The tensor with a content; with zeros and a note where the content does not fit."""
    if not tensor.numel() or tensor.device.type == "meta":
        return tensor
    with torch.no_grad():
        try:
            content(tensor)
        except (RuntimeError, TypeError, ValueError, OverflowError) as error:
            if any(text in str(error) for text in MACHINE_ERRORS):
                raise
            tensor.zero_()
            shape = list(tensor.shape)
            runtime.notes.append(
                f"a tensor of {shape} holds zeros, since its content does not fit: {summarize_error(error)}"
            )
    return tensor


Fill = Callable[[torch.Tensor], None]
Number = Any
P = ParamSpec("P")
MAX_DRAWN = 1 << 22
"""Random numbers drawn for a tensor; a larger one repeats them, since drawing billions takes minutes."""


def content(write: Callable[Concatenate[torch.Tensor, P], None]) -> Callable[P, Fill]:
    """A kind of content: called with its parameters, it gives what writes them into a tensor."""

    @wraps(write)
    def fill_with(*args: P.args, **kwargs: P.kwargs) -> Fill:
        return lambda tensor: write(tensor, *args, **kwargs)

    return fill_with


@content
def values(tensor: torch.Tensor, values: Sequence[Number]) -> None:
    """These numbers, exactly.

    >>> x = torch.zeros(2); values([0.5, 2.0])(x); x.tolist()
    [0.5, 2.0]
    """
    _put(tensor, torch.tensor(values, dtype=tensor.dtype))


@content
def constant(tensor: torch.Tensor, value: Number) -> None:
    """One number everywhere."""
    tensor.fill_(_clamped(value, tensor.dtype))


@content
def normal(tensor: torch.Tensor, mean: float, std: float, low: float, high: float, zeros: float = 0.0) -> None:
    """Normally distributed within bounds; a share exactly zero."""
    _draw(tensor, lambda part: part.normal_(mean, std).clamp_(low, high), zeros)


@content
def uniform(tensor: torch.Tensor, low: float, high: float, zeros: float = 0.0) -> None:
    """Uniformly distributed; a share exactly zero."""
    _draw(tensor, lambda part: part.uniform_(low, high), zeros)


def _draw(tensor: torch.Tensor, draw: Callable[[torch.Tensor], torch.Tensor], zeros: float) -> None:
    """Fill a tensor, a large one by repeating the first numbers drawn; denormal numbers and a share become zeros."""
    large = tensor.numel() > MAX_DRAWN and tensor.is_contiguous()
    first, *others = tensor.view(-1).split(MAX_DRAWN) if large else [tensor]
    draw(first)
    first.masked_fill_(first.abs() < torch.finfo(first.dtype).tiny, 0)
    if zeros:
        first.masked_fill_(torch.rand(first.shape, device=first.device) < zeros, 0)
    for other in others:
        other.copy_(first[: len(other)])


@content
def either(tensor: torch.Tensor, one: Number, other: Number, share: float) -> None:
    """One of two numbers at random; the share is that of the other."""
    chosen = torch.rand(tensor.shape, device=tensor.device) < share
    tensor.fill_(_clamped(one, tensor.dtype)).masked_fill_(chosen, _clamped(other, tensor.dtype))


@content
def triangle(tensor: torch.Tensor, below: Number, above: Number) -> None:
    """A causal mask: one number on and below the diagonal of the last two dimensions, another above."""
    lower = torch.ones(tensor.shape[-2:], dtype=torch.bool, device=tensor.device).tril()
    tensor.fill_(_clamped(above, tensor.dtype)).masked_fill_(lower, _clamped(below, tensor.dtype))


@content
def arange(tensor: torch.Tensor, start: int, step: int, period: int) -> None:
    """Positions: a constant step, starting again after each period."""
    _put(tensor, torch.arange(tensor.numel(), device=tensor.device) % period * step + start)


@content
def tril(tensor: torch.Tensor, side: int, offset: int, row: int) -> None:
    """Index pairs below the diagonal of a square: their rows (0), their columns (1), or both (2).

    >>> x = torch.zeros(3, dtype=torch.int64); tril(side=3, offset=-1, row=0)(x); x.tolist()
    [1, 2, 2]
    """
    beyond = max(side - 1 - offset, 0) if offset >= 0 else 0
    below = max(side + offset, 0)
    count = side * side - beyond * (beyond + 1) // 2 if offset >= 0 else below * (below + 1) // 2
    if count * (2 if row == 2 else 1) != tensor.numel():
        raise ValueError(f"a square of {side} has {count} pairs")
    pairs = torch.tril_indices(side, side, offset, device=tensor.device)
    _put(tensor, pairs if row == 2 else pairs[row])


@content
def even(tensor: torch.Tensor, total: int, whole: bool) -> None:
    """Offsets of bags of equal length; ``whole`` includes the end of the last one."""
    bags = max(tensor.numel() - whole, 1)
    _put(tensor, torch.arange(tensor.numel(), device=tensor.device) * total // bags)


@content
def bags(tensor: torch.Tensor, total: int, bags: int) -> None:
    """The bag of each id, of bags of equal length."""
    _put(tensor, torch.arange(tensor.numel(), device=tensor.device) * bags // max(total, 1))


@content
def offsets(tensor: torch.Tensor, first: int, last: int, steps: Sequence[int]) -> None:
    """Offsets of bags whose lengths follow a histogram in powers of two, in random order."""
    lengths = hits_from_histogram(steps, last - first, min(sum(steps), tensor.numel()))
    every = torch.zeros(tensor.numel() - 1, dtype=torch.int64)
    every[: len(lengths)] = lengths[: len(every)]
    shuffled = every[torch.randperm(len(every))]
    _put(tensor, torch.cat([torch.zeros(1, dtype=torch.int64), shuffled.cumsum(0)]) + first)


@content
def ids(
    tensor: torch.Tensor, low: int, high: int, unique: int = 0, reuse: Sequence[int] = (), sorted: bool = False,
    none: int = -1, nones: int = 0,
) -> None:  # fmt: skip
    """Row ids: ``reuse[k]`` rows are hit between 2^k and 2^(k+1) - 1 times; uniformly drawn without it.

    ``nones`` of them are the id ``none``, for instance a class that a loss ignores.

    >>> x = torch.zeros(6, dtype=torch.int64); ids(low=3, high=9, unique=3, reuse=[2, 0, 1])(x)
    >>> torch.unique(x, return_counts=True)[1].sort()[0].tolist(), 3 <= int(x.min()) and int(x.max()) <= 9
    ([1, 1, 4], True)
    """
    count, rows = tensor.numel() - nones, high - low + 1
    if not reuse or unique > rows:
        drawn = torch.randint(low, high + 1, (count,))
    else:
        hits = hits_from_histogram(reuse, count, min(unique, count))
        # The first and last row are hit, as in the recording: where the table ends must not change.
        places = low + _distinct(rows, len(hits))
        drawn = places.repeat_interleave(hits)[:count]
        drawn = torch.cat([drawn, drawn[:1].expand(count - len(drawn))])
    drawn = torch.cat([drawn, torch.full((nones,), none)])
    _put(tensor, drawn.sort()[0] if sorted else drawn[torch.randperm(len(drawn))])


def hits_from_histogram(histogram: Sequence[int], total: int, distinct: int) -> torch.Tensor:
    """Hits of each distinct row, from a histogram in powers of two and the total number of hits.

    >>> hits_from_histogram([2, 1], total=5, distinct=3).tolist()
    [1, 1, 3]
    """
    counts = torch.tensor(histogram, dtype=torch.int64).clamp(0, distinct)
    low = (2 ** torch.arange(len(counts))).repeat_interleave(counts)[:distinct]
    slack = low - 1
    spare = int(total - low.sum())
    if spare <= 0 or not len(low):
        return low
    share = (slack.cumsum(0).double() * min(spare / max(int(slack.sum()), 1), 1.0)).round().long()
    return low + torch.diff(share, prepend=torch.zeros(1, dtype=torch.int64))


def _distinct(rows: int, count: int) -> torch.Tensor:
    """So many distinct rows of a table, including its first and last."""
    if count >= rows:
        return torch.arange(rows)[torch.randperm(rows)]
    if count * 4 > rows:
        inner = torch.randperm(max(rows - 2, 0))[: max(count - 2, 0)] + 1
    else:
        drawn = torch.unique(torch.randint(1, max(rows - 1, 2), (count * 2,)))
        inner = drawn[torch.randperm(len(drawn))][: max(count - 2, 0)]
    found = torch.cat([torch.tensor([0, rows - 1][: count or 1]), inner])
    return found[torch.randperm(len(found))]


def _clamped(value: Number, dtype: torch.dtype) -> Number:
    """A number clamped to the range of a dtype: masks may hold the lowest number of another one.

    >>> _clamped(-3e38, torch.float16), _clamped(float("inf"), torch.float16), _clamped(7, torch.int64)
    (-65504.0, inf, 7)
    """
    if not dtype.is_floating_point or isinstance(value, bool) or not math.isfinite(value):
        return value
    bounds = torch.finfo(dtype)
    return min(max(float(value), bounds.min), bounds.max)


def _put(tensor: torch.Tensor, content: torch.Tensor) -> None:
    tensor.copy_(content.to(tensor.device).reshape(tensor.shape))
