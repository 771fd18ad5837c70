"""Recurrent networks on a GPU: one call of cuDNN, or a fused cell for each step.

As in PyTorch's ``RNN.cpp``: cuDNN where it takes the dtype, which bfloat16 is not; else layers are unrolled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from foretrace.record.sketch.torch_classes import sizes_of

aten: Any = torch.ops.aten
C: Any = torch._C
RNN_MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
"""CuDNN's numbers of recurrent networks."""
DROPOUT_STATE = 2 << 20
"""Bytes of cuDNN's generators for dropout between layers, kept between calls."""
RESERVED = {0: 1, 1: 1, 2: 5, 3: 6}
"""How many values cuDNN reserves for backward, for each of a layer's results: those that recordings on an H200 show of
LSTM and GRU without dropout."""
RESERVED_BYTES = 256
"""What it reserves besides."""


def recurrent(name: str) -> Any:
    """LSTM, GRU or RNN by cuDNN: one call for all layers and steps, unless it does not take the dtype."""

    def call(input: torch.Tensor, *given: Any) -> Any:
        rest = list(given)
        half = torch.is_autocast_enabled("cuda") and input.dtype != torch.float64
        if not (C._get_cudnn_enabled() and (half or input.dtype in torch.backends.cudnn.CUDNN_TENSOR_DTYPES)):
            return unrolled(name, input, *given)
        packed = not isinstance(rest[2], bool)
        sizes: list[int] = []
        if packed:
            batch_sizes = rest.pop(0)
            sizes = sizes_of(batch_sizes)
        hidden, weights, biases, layers, p, train, both_ways, *batch_first = rest
        hx, cx = hidden if isinstance(hidden, (list, tuple)) else (hidden, None)
        buffer = _flat_buffer(weights)
        if half:
            buffer, weights = _cast_weights(weights)
            cx, hx, input = (None if t is None else t.to(torch.float16) for t in (cx, hx, input))
        projected = cx is not None and cx.size(2) != hx.size(2)
        state = _dropout_state(input) if train and p > 0 else None
        made = aten._cudnn_rnn(
            input, list(weights), (4 if biases else 2) + projected, buffer, hx, cx, RNN_MODES[name],
            (cx if projected else hx).size(2), hx.size(2) if projected else 0, layers, batch_first == [True], p, train,
            both_ways, sizes, state,
        )  # fmt: skip
        return made[:3] if cx is not None else made[:2]

    return call


def _dropout_state(input: Any) -> torch.Tensor:
    """CuDNN's state of dropout between layers: made by the first call, then kept."""
    holder = getattr(input, "fake_mode", None) or input
    if not hasattr(holder, "rnn_dropout_state"):
        holder.rnn_dropout_state = torch.empty(DROPOUT_STATE, dtype=torch.uint8)
    return holder.rnn_dropout_state


def _flat_buffer(weights: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """The one buffer that holds all weights of a recurrent network, None if they lie apart."""
    storage = weights[0].untyped_storage()
    if any(weight.untyped_storage()._cdata != storage._cdata for weight in weights):
        return None
    return torch.empty(0, dtype=weights[0].dtype).set_(storage)


def _places(weights: Sequence[torch.Tensor]) -> list[int]:
    """Where the weights start in one buffer: matrices come first, then biases."""
    places, start = [0] * len(weights), 0
    for number in sorted(range(len(weights)), key=lambda number: weights[number].dim() == 1):
        places[number], start = start, start + weights[number].numel()
    return places


def flatten_rnn_weights(weights: Sequence[torch.Tensor], *_: Any) -> torch.Tensor:
    """``aten::_cudnn_rnn_flatten_weight``: weights move into one buffer."""
    buffer = weights[0].new_empty(sum(weight.numel() for weight in weights))
    for weight, start in zip(weights, _places(weights)):
        weight.set_(buffer.untyped_storage(), start, weight.shape, weight.stride())
    return buffer


def _cast_weights(weights: Sequence[torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """A buffer in half precision and its parts, into which autocast copies the weights."""
    buffer = torch.zeros(sum(weight.numel() for weight in weights), dtype=torch.float16)
    parts = [
        torch.empty(0, dtype=torch.float16).set_(buffer.untyped_storage(), start, (weight.numel(), 1), (1, 1))
        for weight, start in zip(weights, _places(weights))
    ]
    for part, weight in zip(parts, weights):
        part.copy_(weight.view(part.shape))
    return buffer, parts


def rnn_forward(arguments: tuple[Any, ...], result: tuple[Any, ...]) -> tuple[Any, ...]:
    """Results of ``aten::_cudnn_rnn``: time comes first in memory; what is reserved; the buffer of all weights."""
    weights, _, buffer, _, _, mode, hidden_size, _, layers, batch_first, _, train, both_ways, sizes = arguments[1:15]
    output, total = result[0], sum(weight.numel() for weight in weights)
    steps = output.numel() // output.size(-1) if not sizes else len(sizes) * sizes[0]
    values = (RESERVED[mode] * layers + layers - 1) * (1 + both_ways) * steps * hidden_size
    reserve = output.new_empty((values * output.element_size() + RESERVED_BYTES) * bool(train), dtype=torch.uint8)
    return (
        _time_first(output) if batch_first and not sizes else output,
        *result[1:3],
        reserve,
        buffer if buffer is not None else weights[0].new_empty(total),
    )


def _time_first(batches: torch.Tensor) -> torch.Tensor:
    """A tensor of this shape, in whose memory the second dimension comes before the first."""
    rows, steps, width = batches.shape
    return batches.new_empty_strided((rows, steps, width), (width, rows * width, 1))


def rnn_backward(input: torch.Tensor, weights: Sequence[torch.Tensor], *rest: Any) -> tuple[Any, ...]:
    """Gradients of a recurrent network, where they are asked for."""
    hx, cx, (of_input, of_hx, of_cx, of_weights) = rest[2], rest[3], rest[-1]
    batch_first, sizes = rest[12], rest[16]
    return (
        (_time_first(input) if batch_first and not sizes else torch.empty_like(input)) if of_input else None,
        torch.empty_like(hx) if of_hx else None,
        torch.empty_like(cx) if of_cx and cx is not None else None,
        [torch.empty_like(weight) for weight in weights] if of_weights else [],
    )


def unrolled(name: str, input: torch.Tensor, *rest: Any) -> Any:
    """A recurrent network as one cell for each step, layer and direction; packed batches as the CPU does them."""
    if not isinstance(rest[2], bool):
        return getattr(torch._VF, name)(input, *rest)
    hidden, weights, _, layers, p, train, both_ways, batch_first = rest
    states = [list(t.unbind(0)) for t in (hidden if name == "lstm" else [hidden])]
    directions, each = 1 + both_ways, len(weights) // (layers * (1 + both_ways))
    given = input.transpose(0, 1) if batch_first else input
    for layer in range(layers):
        made = []
        steps = given.unbind(0)
        for direction in range(directions):
            number = layer * directions + direction
            parts = list(weights[number * each : (number + 1) * each])
            projection = parts.pop() if each in (3, 5) else None
            outputs = []
            for step in reversed(steps) if direction else steps:
                state = [held[number] for held in states]
                after = _cell(name, step, state, parts, projection)
                for held, new in zip(states, after):
                    held[number] = new
                outputs.append(after[0])
            made.append(torch.stack(outputs[::-1] if direction else outputs))
        given = torch.cat(made, -1) if both_ways else made[0]
        if train and p and layer < layers - 1:
            given = torch.native_dropout(given, p, True)[0]
    output = given.transpose(0, 1) if batch_first else given
    return output, *(torch.stack(held) for held in states)


def _cell(name: str, input: Any, state: list[Any], weights: Sequence[Any], w_hr: Any = None) -> list[Any]:
    """The states after one step; weights are those of the input, of the state, and their biases."""
    w_ih, w_hh, b_ih, b_hh = (*weights, None, None)[:4]
    if name.startswith("rnn"):
        activate = torch.tanh if "tanh" in name else torch.relu
        return [activate(F.linear(state[0], w_hh, b_hh).add_(F.linear(input, w_ih, b_ih)))]
    gates = torch.matmul(input, w_ih.t()), torch.matmul(state[0], w_hh.t())
    if name == "gru":
        return [aten._thnn_fused_gru_cell(*gates, state[0], b_ih, b_hh)[0]]
    hy, cy, _ = aten._thnn_fused_lstm_cell(*gates, state[1], b_ih, b_hh)
    return [hy if w_hr is None else torch.matmul(hy, w_hr.t()), cy]


def lstm_cell(input: Any, hx: Sequence[Any], w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
    """``nn.LSTMCell``."""
    return tuple(_cell("lstm", input, list(hx), (w_ih, w_hh, b_ih, b_hh)))


def gru_cell(input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
    """``nn.GRUCell``."""
    return _cell("gru", input, [hx], (w_ih, w_hh, b_ih, b_hh))[0]


def fused_gru_cell(input_gates: torch.Tensor, hidden_gates: torch.Tensor, hx: torch.Tensor, *_: Any) -> Any:
    """``aten::_thnn_fused_gru_cell``: the state and what backward needs, five values for each of its own."""
    return torch.empty_like(hx), hx.new_empty(hx.size(0), 5 * hx.size(1))


def fused_gru_cell_backward(gradient: torch.Tensor, workspace: torch.Tensor, has_bias: bool) -> Any:
    """Gradients of the gates, of the state and of the biases."""
    rows, size = gradient.shape
    gates = [gradient.new_empty(rows, 3 * size) for _ in range(2)]
    biases = [gradient.new_empty(3 * size) if has_bias else None for _ in range(2)]
    return *gates, torch.empty_like(gradient), *biases


RECURRENT_ON_CUDA: dict[Any, Any] = {
    **{getattr(torch._VF, name): recurrent(name) for name in RNN_MODES},
    torch._VF.lstm_cell: lstm_cell,
    torch._VF.gru_cell: gru_cell,
}
"""Functions, and what they do on a GPU."""
RECURRENT_RESULTS: dict[Any, Any] = {
    aten._cudnn_rnn_flatten_weight.default: flatten_rnn_weights,
    aten._cudnn_rnn_backward.default: rnn_backward,
    aten._thnn_fused_gru_cell.default: fused_gru_cell,
    aten._thnn_fused_gru_cell_backward.default: fused_gru_cell_backward,
}
"""Ops that PyTorch's fake kernels do not have."""
