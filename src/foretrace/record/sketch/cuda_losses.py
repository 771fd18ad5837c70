"""Losses and softmaxes on a GPU: what autocast does inside of them, and the shapes of a CTC loss."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from foretrace.record.sketch.values import LONGEST

aten: Any = torch.ops.aten
C: Any = torch._C
UNREDUCED, MEAN, SUM = 0, 1, 2
"""PyTorch's numbers of reductions."""
HALF = (torch.float16, torch.bfloat16)


def cross_entropy(
    given: torch.Tensor, target: torch.Tensor, weight: Any, reduction: int, ignore: int, smoothing: float
) -> Any:
    """Cross entropy under autocast: the softmax in the dtype that is given, sums and the loss in float32."""
    if not torch.is_autocast_enabled("cuda"):
        return C._nn.cross_entropy_loss(given, target, weight, reduction, ignore, smoothing)
    along = 0 if given.dim() == 1 else 1
    classes = given.size(along)
    softened = torch.log_softmax(given, along, dtype=given.dtype)
    beside = (*[1] * along, classes, *[1] * (given.dim() - along - 1))
    if target.is_floating_point():
        if smoothing:
            target = target * (1 - smoothing) + smoothing / classes
        weights = None if weight is None else weight.view(beside)
        each = softened * target if weights is None else softened * target * weights
        if reduction == UNREDUCED:
            return -_summed(each, along)
        return -_summed(each) / (given.numel() // classes) if reduction == MEAN else -_summed(each)
    found = C._nn.nll_loss_nd(_full(softened), target, weight, reduction, ignore)
    if not smoothing:
        return found
    smooth = -_summed(softened if weight is None else softened * weight.view(beside), along)
    ignored = target == ignore
    smooth.masked_fill_(ignored, 0.0)
    if reduction == MEAN:
        taken = ~ignored if weight is None else weight.gather(0, target.masked_fill(ignored, 0).flatten())
        count = (taken if weight is None else taken.masked_fill_(ignored.flatten(), 0)).sum()
        smooth = _summed(smooth) / count
    elif reduction != UNREDUCED:
        smooth = _summed(smooth)
    return (1 - smoothing) * found + smooth * (smoothing / classes)


def _full(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor in float32, as autocast casts arguments."""
    return tensor.to(torch.float32) if tensor.dtype in HALF else tensor


def _summed(tensor: torch.Tensor, *along: int) -> torch.Tensor:
    """A sum under autocast: of half precision in float32."""
    return torch.sum(tensor, *along, **({"dtype": torch.float32} if tensor.dtype in HALF else {}))


def pairwise_distance(
    one: torch.Tensor, other: torch.Tensor, p: float = 2, eps: float = 1e-6, keepdim: bool = False
) -> torch.Tensor:
    """The norm of differences, under autocast in float32."""
    if not torch.is_autocast_enabled("cuda"):
        return torch.pairwise_distance(one, other, p, eps, keepdim)
    apart = one - other + eps
    if apart.dtype not in HALF:
        return aten.norm(apart, p, [apart.dim() - 1], keepdim)
    return aten.norm(apart, p, [apart.dim() - 1], keepdim, dtype=torch.float32)


def softmax(name: str) -> Any:
    """A softmax whose kernel reads float16 and writes float32; other dtypes are cast first."""
    call = getattr(torch, name)
    widening = getattr(aten, f"_{name}")

    def made(input: torch.Tensor, dim: int, *rest: Any, dtype: Any = None) -> torch.Tensor:
        dtype = dtype if dtype is not None else next((each for each in rest if isinstance(each, torch.dtype)), None)
        if input.dtype == torch.float16 and dtype == torch.float32:
            return widening(input, dim, True)
        return call(input, dim, dtype=dtype)

    return made


def ctc_loss(
    log_probs: torch.Tensor, targets: torch.Tensor, input_lengths: Any, target_lengths: Any, blank: int = 0,
    reduction: int = MEAN, zero_infinity: bool = False,
) -> torch.Tensor:  # fmt: skip
    """The CTC loss by PyTorch's own kernels (cuDNN's takes targets on the host), which are given lengths as numbers."""
    if log_probs.dim() == 2:
        log_probs = log_probs.unsqueeze(1)
    frames, longest = log_probs.size(0), targets.size(1) if targets.dim() == 2 else log_probs.size(0)
    given, said = _lengths(input_lengths, frames), _lengths(target_lengths, longest)
    if targets.dtype != torch.int64:
        targets = targets.to(torch.int64)
    result: torch.Tensor = aten._ctc_loss(log_probs, targets, given, said, blank, zero_infinity)[0]
    if zero_infinity:
        nothing = torch.zeros((), dtype=result.dtype)
        result = torch.where(result == torch.inf, nothing, result)
    if reduction == MEAN:
        lengths = aten._to_copy(torch.empty(len(said), dtype=result.dtype))  # made on the host, and sent to the GPU
        return (result / lengths.clamp_min(1)).mean()
    return result.sum() if reduction == SUM else result


def _lengths(given: Any, longest: int) -> list[int]:
    """Lengths as numbers: those of a tensor where its values are known, else the longest possible."""
    if not isinstance(given, torch.Tensor):
        return [int(each) for each in given]
    if not isinstance(given, FakeTensor):
        known: Any = given
    else:
        fake_step: Any = given.fake_mode
        known = fake_step.values.of(given)
        assumed = fake_step.values.assumed(given) if known is not None else frozenset({LONGEST})
        if assumed:
            fake_step.assumptions.known(assumed, fake_step.calls)
    if known is None:
        return [longest] * given.numel()
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        numbers: list[int] = known.flatten().tolist()
    return numbers


def ctc_forward(log_probs: torch.Tensor, targets: Any, given: Any, said: Any, *_: Any) -> tuple[torch.Tensor, ...]:
    """``aten::_ctc_loss``: a loss for each sequence, and the logarithms of paths' probabilities."""
    batch, longest = log_probs.size(1), max(said, default=0)
    return log_probs.new_empty(batch), log_probs.new_empty(batch, log_probs.size(0), 2 * longest + 1)


LOSSES_ON_CUDA: dict[Any, Any] = {
    C._nn.cross_entropy_loss: cross_entropy,
    torch.pairwise_distance: pairwise_distance,
    torch.ctc_loss: ctc_loss,
    **{getattr(home, name): softmax(name) for name in ("softmax", "log_softmax") for home in (torch, torch.Tensor)},
}
"""Functions, and what they do on a GPU."""
LOSS_RESULTS: dict[Any, Any] = {
    aten._ctc_loss.default: ctc_forward,
    aten._ctc_loss_backward.default: lambda gradient, log_probs, *_: torch.empty_like(log_probs),
}
"""Ops that PyTorch's fake kernels do not have."""
