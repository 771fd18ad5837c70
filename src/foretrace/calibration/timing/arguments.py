"""Arguments that depend on each other: ids inside their table, offsets, masks, what a forward leaves to its backward.

Each function takes a call whose arguments are of the right shape but know nothing of each other, and puts that right.
Forward calls run once, outside of what is timed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from foretrace.platform.cases import Ids
from foretrace.platform.measure.ids import draw_ids, statistics

if TYPE_CHECKING:
    from foretrace.platform.measure.call import Call

aten = torch.ops.aten


def _draw(call: Call, count: int, rows: int, bags: int | None = None) -> torch.Tensor:
    """Ids of the case's own spread, uniform where it gives none; their statistics are kept with the call."""
    given = call.case.ids
    spread = replace(given, count=count) if given else Ids(count)
    ids = draw_ids(spread, rows, call.device)
    call.indices = statistics(ids, rows, count if bags is None else bags)
    return ids


def _fill(tensor: torch.Tensor, ids: torch.Tensor) -> None:
    tensor.copy_(ids.view(tensor.shape))


def _once(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a tensor that the rest of it repeats: one position along each dimension with no step."""
    for dim, step in enumerate(tensor.stride()):
        if step == 0 and tensor.shape[dim] > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def _even_offsets(count: int, bags: int, device: torch.device) -> torch.Tensor:
    return torch.arange(bags, device=device) * count // max(1, bags)


def bag(call: Call) -> None:
    """Ids of an embedding bag, and bags of even length."""
    ids, offsets = call["indices"], call["offsets"]
    bags = offsets.numel() - bool(call["include_last_offset"])
    _fill(ids, _draw(call, ids.numel(), call["weight"].shape[0], bags))
    offsets[:bags] = _even_offsets(ids.numel(), bags, ids.device)
    offsets[bags:] = ids.numel()


def bag_backward(call: Call) -> None:
    """The same, and for each id the bag it is in."""
    ids, bags = call["indices"], call["bag_size"].numel()
    _fill(ids, _draw(call, ids.numel(), call["num_weights"], bags))
    starts = _even_offsets(ids.numel(), bags, ids.device)
    call["offsets"][:bags] = starts
    call["offsets"][bags:] = ids.numel()
    lengths = torch.diff(starts, append=torch.tensor([ids.numel()], device=ids.device))
    _fill(call["bag_size"], lengths)
    if call["offset2bag"].numel():
        _fill(call["offset2bag"], torch.arange(bags, device=ids.device).repeat_interleave(lengths))


def rows_of(table: str, places: str) -> Callable[[Call], None]:
    """Ids of rows along a dimension of a table; a table given as a number is that many rows."""

    def prepare(call: Call) -> None:
        whole, ids = call[table], call[places]
        dim = call["dim"] if "dim" in call.names else 0
        rows = whole if isinstance(whole, int) else whole.shape[dim]
        held = _once(ids)
        _fill(held, _draw(call, held.numel(), rows))
        if held is not ids:
            call.indices = statistics(ids, rows, ids.numel())

    return prepare


def positions(call: Call) -> None:
    """One list of positions for each indexed dimension; each pair of a square once, where that is their number."""
    table, places = call["self"], [(dim, p) for dim, p in enumerate(call["indices"]) if p is not None]
    side = table.shape[places[0][0]]
    square = len(places) == 2 and side == table.shape[places[1][0]]
    if call.case.ids is None and square and places[0][1].numel() == side * (side - 1) // 2:
        for (_, tensor), pair in zip(places, torch.tril_indices(side, side, -1, device=call.device)):
            _fill(tensor, pair)
        return
    for dim, tensor in places:
        if tensor.dtype != torch.bool:
            _fill(tensor, _draw(call, tensor.numel(), table.shape[dim]))


def sparse(name: str) -> Callable[[Call], None]:
    """A sparse gradient with a row for each id, as an embedding's backward leaves it."""

    def prepare(call: Call) -> None:
        grad = call[name]
        if not isinstance(grad, torch.Tensor) or grad.layout != torch.sparse_coo:
            return
        rows, dim = grad.shape
        count = call.case.ids.count if call.case.ids else rows
        ids = _draw(call, count, rows)
        values = torch.randn(count, dim, dtype=grad.dtype, device=grad.device)
        call[name] = torch.sparse_coo_tensor(ids[None], values, grad.shape, check_invariants=False)

    return prepare


def groups(call: Call) -> None:
    """Where each group's rows end, of uneven numbers of them."""
    ends, product = call["offs"], call["self"]
    rows = product.shape[0 if call["mat2"].dim() == 3 else 1]
    # Each group's rows begin at a whole block of memory, as the kernel wants it where they lie innermost.
    blocks = torch.rand(ends.numel(), device=ends.device).add_(0.3).cumsum(0)
    _fill(ends, (blocks / blocks[-1] * (rows // 8)).round().int() * 8)


def target(call: Call) -> None:
    """Classes to hit; the weight they sum up to."""
    places, classes = call["target"], call["self"].shape[1]
    _fill(places, torch.randint(classes, places.shape, device=places.device))
    if "total_weight" in call.names:
        call["total_weight"].fill_(float(places.numel()))


def probabilities(call: Call) -> None:
    """Guesses and targets between 0 and 1."""
    call["self"].uniform_(0.01, 0.99)
    call["target"].uniform_(0, 1)


def keys(call: Call) -> None:
    """Integers that are worth sorting."""
    tensor = call["self"]
    if not tensor.is_floating_point() and tensor.dtype != torch.bool:
        tensor.random_(max(2, tensor.numel() // 2))


def spread_out(call: Call) -> None:
    """Numbers over the whole range that is counted."""
    call["self"].uniform_(call["min"], call["max"])


def kept(call: Call) -> None:
    """A dropout's mask keeps as many as its scale says."""
    call["mask"].bernoulli_(1 / call["scale"])


def attention_backward(forward: str, order: tuple[str, ...]) -> Callable[[Call], None]:
    """Run the attention forward; its output, row sums and random state go to the backward call."""

    def prepare(call: Call) -> None:
        query, key, value = call["query"], call["key"], call["value"]
        options = {"dropout_p": call["dropout_p"], "is_causal": call["is_causal"], "scale": call["scale"]}
        if "attn_bias" in call.names:
            options |= {"attn_bias": call["attn_bias"], "compute_log_sumexp": True}
        results = getattr(aten, forward).default(query, key, value, **options)
        for name, result in zip(order, results):
            if name:
                call[name] = result

    return prepare


def group_norm_backward(call: Call) -> None:
    """Mean and deviation of each group."""
    x, weight = call["input"], call["weight"]
    sizes = (call["N"], call["C"], call["HxW"], call["group"])
    _, call["mean"], call["rstd"] = aten.native_group_norm(x, weight, None, *sizes, 1e-5)


def cudnn_batch_norm_backward(call: Call) -> None:
    """Statistics of the batch, and what cuDNN keeps for itself."""
    x, weight = call["input"], call["weight"]
    averages = (call["running_mean"], call["running_var"])
    results = aten.cudnn_batch_norm(x, weight, torch.zeros_like(weight), *averages, True, 0.1, call["epsilon"])
    _, call["save_mean"], call["save_var"], call["reserveSpace"] = results


def native_batch_norm_backward(call: Call) -> None:
    """Statistics of the batch."""
    x, weight = call["input"], call["weight"]
    averages = (call["running_mean"], call["running_var"])
    results = aten.native_batch_norm(x, weight, weight, *averages, True, 0.1, call["eps"])
    _, call["save_mean"], call["save_invstd"] = results


def layer_norm_backward(call: Call) -> None:
    """Mean and deviation of each row."""
    results = aten.native_layer_norm(call["input"], call["normalized_shape"], call["weight"], call["bias"], 1e-5)
    _, call["mean"], call["rstd"] = results


def rms_norm_backward(call: Call) -> None:
    """Deviation of each row."""
    _, call["rstd"] = aten._fused_rms_norm(call["input"], call["normalized_shape"], call["weight"], 1e-5)


def max_pool_backward(call: Call) -> None:
    """Where the largest element of each window was."""
    window = [call[name] for name in ("kernel_size", "stride", "padding", "dilation", "ceil_mode")]
    call["indices"] = aten.max_pool2d_with_indices(call["self"], *window)[1]


def steps(call: Call) -> None:
    """An optimizer that has made a step before, and second moments that have a root."""
    for tensor in call["state_steps"]:
        tensor.fill_(1.0)
    for tensor in call["exp_avg_sqs"]:
        tensor.abs_()


def softmax_backward(log: bool) -> Callable[[Call], None]:
    """An output that a softmax could have given."""

    def prepare(call: Call) -> None:
        classes = call["output"].shape[call["dim"]]
        call["output"].uniform_(0, 2 / classes)
        if log:
            call["output"].sub_(math.log(classes))

    return prepare


_SAVED = ("out", "logsumexp", "cum_seq_q", "cum_seq_k", "max_q", "max_k", "philox_seed", "philox_offset")

PREPARE: dict[str, Callable[[Call], None]] = {
    "aten::_embedding_bag": bag,
    "aten::_embedding_bag_backward": bag_backward,
    "aten::embedding": rows_of("weight", "indices"),
    "aten::embedding_dense_backward": rows_of("num_weights", "indices"),
    "aten::index_select": rows_of("self", "index"),
    "aten::index_add_": rows_of("self", "index"),
    "aten::gather": rows_of("self", "index"),
    "aten::scatter_add_": rows_of("self", "index"),
    "aten::scatter_": rows_of("self", "index"),
    "aten::index": positions,
    "aten::_index_put_impl_": positions,
    "aten::add_": sparse("other"),
    "aten::_coalesce": sparse("self"),
    "aten::_grouped_mm": groups,
    "aten::nll_loss2d_forward": target,
    "aten::nll_loss2d_backward": target,
    "aten::bincount": keys,
    "aten::histc": spread_out,
    "aten::nll_loss_forward": target,
    "aten::nll_loss_backward": target,
    "aten::binary_cross_entropy": probabilities,
    "aten::binary_cross_entropy_backward": probabilities,
    "aten::sort": keys,
    "aten::topk": keys,
    "aten::_unique2": keys,
    "aten::native_dropout_backward": kept,
    "aten::_softmax_backward_data": softmax_backward(log=False),
    "aten::_log_softmax_backward_data": softmax_backward(log=True),
    "aten::native_layer_norm_backward": layer_norm_backward,
    "aten::native_group_norm_backward": group_norm_backward,
    "aten::native_batch_norm_backward": native_batch_norm_backward,
    "aten::cudnn_batch_norm_backward": cudnn_batch_norm_backward,
    "aten::_fused_rms_norm_backward": rms_norm_backward,
    "aten::max_pool2d_with_indices_backward": max_pool_backward,
    "aten::_fused_adamw_": steps,
    "aten::_fused_adam_": steps,
    "aten::_scaled_dot_product_cudnn_attention_backward": attention_backward(
        "_scaled_dot_product_cudnn_attention", _SAVED
    ),
    "aten::_scaled_dot_product_flash_attention_backward": attention_backward(
        "_scaled_dot_product_flash_attention", _SAVED
    ),
    "aten::_scaled_dot_product_efficient_attention_backward": attention_backward(
        "_scaled_dot_product_efficient_attention",
        ("out", "logsumexp", "philox_seed", "philox_offset"),
    ),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": attention_backward(
        "_scaled_dot_product_flash_attention_for_cpu", ("out", "logsumexp")
    ),
}
"""What to do, by the op's name, before a call can be timed."""
