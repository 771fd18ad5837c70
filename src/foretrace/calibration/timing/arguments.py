"""Arguments that depend on each other: ids within their table, offsets, masks, results of a forward for its backward.

Each function takes a call whose arguments have the right shapes but unrelated values, and makes them consistent.
Forward calls run once, untimed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch

from foretrace.graph import Indices
from foretrace.platform.measurements.cases import Ids

if TYPE_CHECKING:
    from foretrace.calibration.timing.call import Call

aten = torch.ops.aten

SCATTER = 2654435761
"""Multiplied with a rank to place it somewhere in the table: popular rows are not neighbours."""


def _draw(call: Call, count: int, rows: int, bags: int | None = None) -> torch.Tensor:
    """Ids of the case's distribution, uniform where it has none; their statistics are kept with the call."""
    given = call.case.ids
    distribution = replace(given, count=count) if given else Ids(count)
    ids = draw_ids(distribution, rows, call.device)
    call.indices = id_statistics(ids, rows, count if bags is None else bags)
    return ids


def _fill(tensor: torch.Tensor, ids: torch.Tensor) -> None:
    tensor.copy_(ids.view(tensor.shape))


def _once(tensor: torch.Tensor) -> torch.Tensor:
    """One copy of the elements of a broadcast tensor: one position along each dimension with stride 0."""
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
    """Ids and offsets of bags of equal size, and the bag of each id."""
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
    """Ids of rows along a dimension of a table; a table may be given by its number of rows."""

    def prepare(call: Call) -> None:
        whole, ids = call[table], call[places]
        dim = call["dim"] if "dim" in call.names else 0
        rows = whole if isinstance(whole, int) else whole.shape[dim]
        once = _once(ids)
        _fill(once, _draw(call, once.numel(), rows))
        if once is not ids:
            call.indices = id_statistics(ids, rows, ids.numel())

    return prepare


def positions(call: Call) -> None:
    """Positions for each indexed dimension; all pairs below the diagonal of a square, if their number fits."""
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
    """A sparse gradient with a row for each id, as the backward of an embedding returns it."""

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
    """The ends of each group's rows, of uneven numbers."""
    ends, product = call["offs"], call["self"]
    rows = product.shape[0 if call["mat2"].dim() == 3 else 1]
    # Groups are aligned to 8 rows, as the kernel requires where rows are innermost.
    blocks = torch.rand(ends.numel(), device=ends.device).add_(0.3).cumsum(0)
    _fill(ends, (blocks / blocks[-1] * (rows // 8)).round().int() * 8)


def target(call: Call) -> None:
    """Classes, and the sum of their weights."""
    places, classes = call["target"], call["self"].shape[1]
    _fill(places, torch.randint(classes, places.shape, device=places.device))
    if "total_weight" in call.names:
        call["total_weight"].fill_(float(places.numel()))


def probabilities(call: Call) -> None:
    """Predictions and targets between 0 and 1."""
    call["self"].uniform_(0.01, 0.99)
    call["target"].uniform_(0, 1)


def keys(call: Call) -> None:
    """Integers with many distinct values."""
    tensor = call["self"]
    if not tensor.is_floating_point() and tensor.dtype != torch.bool:
        tensor.random_(max(2, tensor.numel() // 2))


def within_range(call: Call) -> None:
    """Numbers over the whole range of the histogram."""
    call["self"].uniform_(call["min"], call["max"])


def dropout_mask(call: Call) -> None:
    """A mask with the share of ones that the scale implies."""
    call["mask"].bernoulli_(1 / call["scale"])


def attention_backward(forward: str, order: tuple[str, ...]) -> Callable[[Call], None]:
    """Run the attention's forward; its output, row sums and random state are arguments of the backward."""

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
    """Mean and reciprocal deviation of each group."""
    x, weight = call["input"], call["weight"]
    sizes = (call["N"], call["C"], call["HxW"], call["group"])
    _, call["mean"], call["rstd"] = aten.native_group_norm(x, weight, None, *sizes, 1e-5)


def cudnn_batch_norm_backward(call: Call) -> None:
    """Statistics of the batch, and cuDNN's reserve space."""
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
    """Mean and reciprocal deviation of each row."""
    results = aten.native_layer_norm(call["input"], call["normalized_shape"], call["weight"], call["bias"], 1e-5)
    _, call["mean"], call["rstd"] = results


def rms_norm_backward(call: Call) -> None:
    """Reciprocal deviation of each row."""
    _, call["rstd"] = aten._fused_rms_norm(call["input"], call["normalized_shape"], call["weight"], 1e-5)


def max_pool_backward(call: Call) -> None:
    """Where the largest element of each window was."""
    window = [call[name] for name in ("kernel_size", "stride", "padding", "dilation", "ceil_mode")]
    call["indices"] = aten.max_pool2d_with_indices(call["self"], *window)[1]


def flat_weights(call: Call) -> None:
    """The weights of a recurrent network as cuDNN keeps them: views into one buffer."""
    sizes = [call[name] for name in ("mode", "hidden_size", "proj_size", "num_layers", "batch_first", "bidirectional")]
    call["weight_buf"] = aten._cudnn_rnn_flatten_weight(
        call["weight"], call["weight_stride0"], call["input"].shape[-1], *sizes
    )


def recurrent_backward(call: Call) -> None:
    """The forward's output and what it saved for the backward."""
    flat_weights(call)
    names = [argument.name for argument in aten._cudnn_rnn.default._schema.arguments]
    call["output"], _, _, call["reserve"], _ = aten._cudnn_rnn(*(call[name] for name in names))


def steps(call: Call) -> None:
    """Optimizer state after a first step, with second moments that have a square root."""
    for tensor in call["state_steps"]:
        tensor.fill_(1.0)
    for tensor in call["exp_avg_sqs"]:
        tensor.abs_()


def softmax_backward(log: bool) -> Callable[[Call], None]:
    """An output with values that a softmax returns."""

    def prepare(call: Call) -> None:
        classes = call["output"].shape[call["dim"]]
        call["output"].uniform_(0, 2 / classes)
        if log:
            call["output"].sub_(math.log(classes))

    return prepare


_SAVED = ("out", "logsumexp", "cum_seq_q", "cum_seq_k", "max_q", "max_k", "philox_seed", "philox_offset")


def well_conditioned(call: Call) -> None:
    """A matrix that can be decomposed: of large and positive eigenvalues."""
    a = call.args[0]
    if a.shape[-2] == a.shape[-1]:
        a.copy_((a + a.mT) / 2)
        a.diagonal(dim1=-2, dim2=-1).add_(4.0 * a.shape[-1] ** 0.5)


def grid(call: Call) -> None:
    """Points all over the image, as a map that turns and shifts it makes them."""
    where = call["grid"]
    sides = [torch.linspace(-1, 1, size, device=call.device) for size in where.shape[1:-1]]
    points = torch.stack(torch.meshgrid(*sides, indexing="ij")[::-1], -1)
    where.copy_(points + 0.05 * torch.randn_like(points))


PREPARE: dict[str, Callable[[Call], None]] = {
    **dict.fromkeys(
        (
            "aten::linalg_cholesky_ex",
            "aten::linalg_inv_ex",
            "aten::_linalg_solve_ex",
            "aten::linalg_solve_triangular",
            "aten::_linalg_eigh",
        ),
        well_conditioned,
    ),
    **dict.fromkeys(
        (
            "aten::grid_sampler_2d",
            "aten::grid_sampler_2d_backward",
            "aten::cudnn_grid_sampler",
            "aten::cudnn_grid_sampler_backward",
        ),
        grid,
    ),
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
    "aten::histc": within_range,
    "aten::nll_loss_forward": target,
    "aten::nll_loss_backward": target,
    "aten::binary_cross_entropy": probabilities,
    "aten::binary_cross_entropy_backward": probabilities,
    "aten::sort": keys,
    "aten::topk": keys,
    "aten::_unique2": keys,
    "aten::native_dropout_backward": dropout_mask,
    "aten::_softmax_backward_data": softmax_backward(log=False),
    "aten::_log_softmax_backward_data": softmax_backward(log=True),
    "aten::native_layer_norm_backward": layer_norm_backward,
    "aten::native_group_norm_backward": group_norm_backward,
    "aten::native_batch_norm_backward": native_batch_norm_backward,
    "aten::cudnn_batch_norm_backward": cudnn_batch_norm_backward,
    "aten::_fused_rms_norm_backward": rms_norm_backward,
    "aten::max_pool2d_with_indices_backward": max_pool_backward,
    "aten::_cudnn_rnn": flat_weights,
    "aten::_cudnn_rnn_backward": recurrent_backward,
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
"""By op name: what makes a call's arguments consistent before it can be timed."""


def draw_ids(wanted: Ids, rows: int, device: Any) -> torch.Tensor:
    """Row ids that follow a distribution, in random order."""
    if wanted.tables > 1:
        return _of_many_tables(wanted, rows, device)
    if wanted.reuse:
        return _by_histogram(wanted, rows, device)
    if wanted.skew == 0:
        return torch.randint(rows, (wanted.count,), device=device)
    uniform = torch.rand(wanted.count, device=device, dtype=torch.float64)
    flat = 1 - wanted.skew
    if abs(flat) < 1e-3:
        flat = 1e-3  # the power law's own formula has no value at 1
    ranks = (uniform * (rows**flat - 1) + 1) ** (1 / flat) - 1
    return ranks.clamp(0, rows - 1).long() * SCATTER % rows


def _of_many_tables(wanted: Ids, rows: int, device: Any) -> torch.Tensor:
    """The ids of each table after those of the table before, and likewise their rows."""
    each = rows // wanted.tables
    bounds = [wanted.count * number // wanted.tables for number in range(wanted.tables + 1)]
    counts = [last - first for first, last in pairwise(bounds)]
    parts = [draw_ids(replace(wanted, count=count, tables=1), each, device) for count in counts if count]
    starts = torch.arange(wanted.tables, device=device).repeat_interleave(torch.tensor(counts, device=device)) * each
    return torch.cat(parts) + starts


def _by_histogram(wanted: Ids, rows: int, device: Any) -> torch.Tensor:
    """Distinct rows, each as often as the histogram says; if the table has too few rows, all are hit more often."""
    shares = torch.tensor(wanted.reuse, dtype=torch.float64, device=device)
    shares /= shares.sum()
    least = 2.0 ** torch.arange(len(shares), dtype=torch.float64, device=device)
    typical = float((shares * (1.5 * least - 0.5)).sum())
    distinct = max(1, min(rows, wanted.count, wanted.distinct or round(wanted.count / typical)))
    # As many rows of each doubling as its share: drawn at random, the few rows with most hits would vary a lot.
    bounds = (shares.cumsum(0) * distinct).round().long()
    exponent = torch.bucketize(torch.arange(distinct, device=device), bounds, right=True).clamp(max=len(shares) - 1)
    low = least[exponent]
    more = low - 1
    # Within a doubling hits are uniform around a mean, such that their sum is the number of ids.
    mean = float(((wanted.count - low.sum()) / more.sum().clamp(min=1)).clamp(0, 1))
    place = torch.rand(distinct, dtype=torch.float64, device=device)
    place = place * 2 * mean if mean <= 0.5 else 1 - place * 2 * (1 - mean)
    hits = (low + more * place + torch.rand(distinct, device=device)).long().clamp(min=1)
    ids = _random_rows(rows, distinct, device).repeat_interleave(hits)
    if len(ids) < wanted.count:
        ids = torch.cat([ids, ids[torch.randint(len(ids), (wanted.count - len(ids),), device=device)]])
    return ids[torch.randperm(len(ids), device=device)[: wanted.count]]


def _random_rows(rows: int, distinct: int, device: Any) -> torch.Tensor:
    """Distinct rows of a table, at random."""
    if rows > 2**22 and distinct < rows // 64:
        # Few rows are drawn twice there, and a permutation of all of them takes long.
        return torch.randint(rows, (distinct,), device=device)
    return torch.randperm(rows, device=device)[:distinct]


def id_statistics(ids: torch.Tensor, rows: int, bags: int) -> Indices:
    """Counts and reuse histogram of ids.

    >>> id_statistics(torch.tensor([3, 3, 5]), rows=10, bags=3).reuse
    (1, 1)
    """
    hits = torch.unique(ids, return_counts=True)[1]
    reuse = torch.bincount(torch.frexp(hits.double())[1].long() - 1)
    return Indices(op=-1, rows=rows, count=ids.numel(), unique=len(hits), bags=bags, reuse=tuple(reuse.tolist()))
