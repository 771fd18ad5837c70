"""Input tensors of a step, made from their descriptions: storages, views, and the values that fill them.

To add a kind of content, add a function that returns what fills a tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

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
    memory: torch.Tensor,
    shape: Sequence[int],
    stride: Sequence[int],
    offset: int,
    dtype: torch.dtype,
    content: Fill,
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
MAX_DRAWN = 1 << 22
"""Random numbers drawn for a tensor; a larger one repeats them, since drawing billions takes minutes."""


def values(values: Sequence[Number]) -> Fill:
    """These numbers, exactly.

    >>> x = torch.zeros(2); values([0.5, 2.0])(x); x.tolist()
    [0.5, 2.0]
    """
    return lambda tensor: _put(tensor, torch.tensor(values, dtype=tensor.dtype))


def constant(value: Number) -> Fill:
    """One number everywhere."""
    return lambda tensor: tensor.fill_(_clamped(value, tensor.dtype))


def normal(mean: float, std: float, low: float, high: float, zeros: float = 0.0) -> Fill:
    """Normally distributed within bounds; a share exactly zero."""

    def draw(tensor: torch.Tensor) -> None:
        tensor.normal_(mean, std).clamp_(low, high)
        _clean(tensor, zeros)

    return _repeated(draw)


def uniform(low: float, high: float, zeros: float = 0.0) -> Fill:
    """Uniformly distributed; a share exactly zero."""

    def draw(tensor: torch.Tensor) -> None:
        tensor.uniform_(low, high)
        _clean(tensor, zeros)

    return _repeated(draw)


def _repeated(draw: Fill) -> Fill:
    """Fills a large tensor by repeating the first numbers drawn."""

    def fill(tensor: torch.Tensor) -> None:
        if tensor.numel() <= MAX_DRAWN or not tensor.is_contiguous():
            draw(tensor)
            return
        first, *others = tensor.view(-1).split(MAX_DRAWN)
        draw(first)
        for other in others:
            other.copy_(first[: len(other)])

    return fill


def _clean(tensor: torch.Tensor, zeros: float) -> None:
    """Replace denormal numbers by zeros, and set a share of zeros."""
    tensor.masked_fill_(tensor.abs() < torch.finfo(tensor.dtype).tiny, 0)
    if zeros:
        tensor.masked_fill_(torch.rand(tensor.shape, device=tensor.device) < zeros, 0)


def either(one: Number, other: Number, share: float) -> Fill:
    """One of two numbers at random; the share is that of the other."""

    def fill(tensor: torch.Tensor) -> None:
        chosen = torch.rand(tensor.shape, device=tensor.device) < share
        tensor.fill_(_clamped(one, tensor.dtype)).masked_fill_(chosen, _clamped(other, tensor.dtype))

    return fill


def triangle(below: Number, above: Number) -> Fill:
    """A causal mask: one number on and below the diagonal of the last two dimensions, another above."""

    def fill(tensor: torch.Tensor) -> None:
        lower = torch.ones(tensor.shape[-2:], dtype=torch.bool, device=tensor.device).tril()
        tensor.fill_(_clamped(above, tensor.dtype)).masked_fill_(lower, _clamped(below, tensor.dtype))

    return fill


def arange(start: int, step: int, period: int) -> Fill:
    """Positions: a constant step, starting again after each period."""

    def fill(tensor: torch.Tensor) -> None:
        _put(tensor, torch.arange(tensor.numel(), device=tensor.device) % period * step + start)

    return fill


def tril(side: int, offset: int, row: int) -> Fill:
    """Index pairs below the diagonal of a square: their rows (0), their columns (1), or both (2).

    >>> x = torch.zeros(3, dtype=torch.int64); tril(side=3, offset=-1, row=0)(x); x.tolist()
    [1, 2, 2]
    """

    def fill(tensor: torch.Tensor) -> None:
        beyond = max(side - 1 - offset, 0) if offset >= 0 else 0
        below = max(side + offset, 0)
        count = side * side - beyond * (beyond + 1) // 2 if offset >= 0 else below * (below + 1) // 2
        if count * (2 if row == 2 else 1) != tensor.numel():
            raise ValueError(f"a square of {side} has {count} pairs")
        pairs = torch.tril_indices(side, side, offset, device=tensor.device)
        _put(tensor, pairs if row == 2 else pairs[row])

    return fill


def even(total: int, whole: bool) -> Fill:
    """Offsets of bags of equal length; ``whole`` includes the end of the last one."""

    def fill(tensor: torch.Tensor) -> None:
        bags = max(tensor.numel() - whole, 1)
        _put(tensor, torch.arange(tensor.numel(), device=tensor.device) * total // bags)

    return fill


def bags(total: int, bags: int) -> Fill:
    """The bag of each id, of bags of equal length."""

    def fill(tensor: torch.Tensor) -> None:
        _put(tensor, torch.arange(tensor.numel(), device=tensor.device) * bags // max(total, 1))

    return fill


def offsets(first: int, last: int, steps: Sequence[int]) -> Fill:
    """Offsets of bags whose lengths follow a histogram in powers of two, in random order."""

    def fill(tensor: torch.Tensor) -> None:
        lengths = hits_from_histogram(steps, last - first, min(sum(steps), tensor.numel()))
        every = torch.zeros(tensor.numel() - 1, dtype=torch.int64)
        every[: len(lengths)] = lengths[: len(every)]
        shuffled = every[torch.randperm(len(every))]
        _put(tensor, torch.cat([torch.zeros(1, dtype=torch.int64), shuffled.cumsum(0)]) + first)

    return fill


def ids(
    low: int,
    high: int,
    unique: int = 0,
    reuse: Sequence[int] = (),
    sorted: bool = False,
    none: int = -1,
    nones: int = 0,
) -> Fill:
    """Row ids: ``reuse[k]`` rows are hit between 2^k and 2^(k+1) - 1 times; uniformly drawn without it.

    ``nones`` of them are the id ``none``, for instance a class that a loss ignores.

    >>> x = torch.zeros(6, dtype=torch.int64); ids(low=3, high=9, unique=3, reuse=[2, 0, 1])(x)
    >>> torch.unique(x, return_counts=True)[1].sort()[0].tolist(), 3 <= int(x.min()) and int(x.max()) <= 9
    ([1, 1, 4], True)
    """

    def fill(tensor: torch.Tensor) -> None:
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

    return fill


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
    """That many distinct rows of a table, including its first and last."""
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
