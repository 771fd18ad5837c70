"""Recurrent networks (RNN, LSTM, GRU) as cuDNN runs them: one call for all layers and steps."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from foretrace.cost_models.kernels.family import CallContext, Description, Family
from foretrace.cost_models.kernels.features import (
    alignment,
    argument,
    bool_argument,
    dtype_code,
    int_argument,
    ints_in,
    log,
    tensors_of,
)
from foretrace.cost_models.kernels.roofline import Work
from foretrace.graph import Op, Tensor, Tf32, Value
from foretrace.graph.tables import Floats
from foretrace.platform.measurements.cases import Case, Draw

FORWARD, BACKWARD, ON_CPU = "aten::_cudnn_rnn", "aten::_cudnn_rnn_backward", "aten::mkldnn_rnn_layer"
PLACES = {FORWARD: 6, BACKWARD: 10, ON_CPU: 9}
"""Position of ``mode``; the sizes follow it."""
GATES = (1, 1, 4, 3)
"""Gates of a cell by cuDNN's mode: RNN with ReLU, RNN with tanh, LSTM, GRU."""
LSTM = 2
STEP_TRIPS = {FORWARD: 8, BACKWARD: 14, ON_CPU: 2}
"""Memory round trips of one time step: a GEMM that waits for the step before, and the gates' arithmetic."""


class Sizes(NamedTuple):
    """Sizes of a recurrent network."""

    steps: int
    batch: int
    inputs: int
    hidden: int
    layers: int
    directions: int
    mode: int
    training: bool

    @property
    def weights(self) -> int:
        """Elements of the weight matrices."""
        gates = GATES[self.mode] * self.hidden * self.directions
        later = (self.layers - 1) * (self.hidden * self.directions + self.hidden)
        return gates * (self.inputs + self.hidden + later)


class Recurrent(Family):
    """cuDNN's recurrent networks, forward and backward, and oneDNN's layers on a CPU."""

    name = "recurrent"
    share = 2
    slow_to_plan = True
    ops = (FORWARD, BACKWARD, ON_CPU)
    columns = ("op", "dtype", "mode", "steps", "batch", "inputs", "hidden", "layers", "directions", "training", "flops",
               "bytes", "chain", "roof", "step_flops", "hidden_aligned", "weights")  # fmt: skip

    def accepts(self, op: Op) -> bool:
        """Calls whose input is known: steps and samples, or all steps of a packed sequence, by features."""
        return bool(op.args) and isinstance(op.args[0], Tensor) and len(op.args[0].shape) in (2, 3)

    def describe(self, op: Op, context: CallContext) -> Description:
        """Sizes, the arithmetic of a step, and the chain of steps that wait for each other."""
        s = _sizes(op)
        source = tensors_of(op)[0]
        times = 3 if op.name == BACKWARD else 1
        flops = 2.0 * s.steps * s.batch * s.weights * times
        states = s.steps * s.batch * s.hidden * s.directions * s.layers * (GATES[s.mode] + 2)
        moved = source.itemsize * (source.numel + times * (states + s.weights))
        chain = s.steps * s.layers * s.directions * STEP_TRIPS[op.name]  # measured layers hardly overlap
        tf32 = source.dtype == "float32" and context.tf32
        work = Work(flops, moved, "tf32" if tf32 else source.dtype, chain)
        features = [
            self.op_codes[op.name], dtype_code(source.dtype) + (100 if tf32 else 0), s.mode, log(s.steps),
            log(s.batch), log(s.inputs), log(s.hidden), s.layers, s.directions, s.training, log(flops), log(moved),
            log(chain), log(64 * work.us(context.device)), log(flops / max(1, s.steps)), alignment(s.hidden),
            log(s.weights),
        ]  # fmt: skip
        return Description(features, work)

    def may_use_tf32(self, settings: Tf32) -> bool:
        """cuDNN's setting, which convolutions follow as well."""
        return settings.convolutions

    def repeats(self, features: Floats) -> Floats:
        """Once for each step, layer and direction."""
        steps, layers, directions = (features[:, self.columns.index(c)] for c in ("steps", "layers", "directions"))
        return np.round(2.0**steps) * layers * directions

    def case(self, draw: Draw) -> Case:
        """A random network over a batch of sequences, or its gradient."""
        if draw.kind == "cpu":
            return Case(_on_cpu(draw))
        dtype = draw.weighted({"float32": 5, "bfloat16": 3, "float16": 3})
        mode, layers, both = draw.weighted({2: 6, 3: 4, 1: 1, 0: 1}), draw.one((1, 1, 2, 2, 3, 4)), draw.chance(0.25)
        widest = max(32, min(1024, int((draw.most / 64) ** 0.5)))
        inputs, hidden = draw.size(16, widest), draw.size(32, widest)
        steps = draw.whole(8, 256)
        batch = draw.whole(1, max(1, min(512, draw.most // (steps * max(inputs, 8 * hidden)))))
        first = draw.chance(0.5)
        directions = 2 if both else 1
        shape = (batch, steps, inputs) if first else (steps, batch, inputs)
        x, state = Tensor(shape, dtype), Tensor((layers * directions, batch, hidden), dtype)
        cell = state if mode == LSTM else None
        weights = _weights(dtype, mode, inputs, hidden, layers, directions)
        listed: list[Value] = list(weights)
        backward = draw.chance(0.5)
        sizes: tuple[Value, ...] = (mode, hidden, 0, layers, first, 0.0, backward or draw.chance(0.5), both, [], None)
        flat = Tensor((sum(weight.numel for weight in weights),), dtype)
        tf32 = dtype == "float32" and draw.chance(0.9)
        if not backward:
            args: tuple[Value, ...] = (x, listed, 4, flat, state, cell, *sizes)
            return Case(Op(FORWARD, args, overload="default"), tf32=tf32)
        out = Tensor((*shape[:2], hidden * directions), dtype)
        saved = Tensor((8,), "uint8")  # cuDNN's reserve: made by the forward that runs first
        args = (x, listed, 4, flat, state, cell, out, out, None, None, *sizes, saved, [True, True, mode == LSTM, True])
        return Case(Op(BACKWARD, args, overload="default"), tf32=tf32)


def _sizes(op: Op) -> Sizes:
    source = tensors_of(op)[0]
    place = PLACES[op.name]
    if op.name == ON_CPU:
        mode, hidden = int_argument(op, place, "mode", LSTM), int_argument(op, place + 1, "hidden_size", 1)
        layers, both, training = int_argument(op, place + 2, "num_layers", 1), False, bool_argument(op, 15, "train")
        first = bool_argument(op, 14, "batch_first")
    else:
        mode, hidden = int_argument(op, place, "mode", LSTM), int_argument(op, place + 1, "hidden_size", 1)
        layers, first = int_argument(op, place + 3, "num_layers", 1), bool_argument(op, place + 4, "batch_first")
        training = bool_argument(op, place + 6, "train")
        both = bool_argument(op, place + 7, "bidirectional")
    packed = ints_in(argument(op, place + 8, "batch_sizes")) if op.name != ON_CPU else []
    shape = source.shape if len(source.shape) > 2 else (1, *source.shape)
    steps, batch = (shape[1], shape[0]) if first else (shape[0], shape[1])
    if packed:
        steps, batch = len(packed), max(1, sum(packed) // len(packed))
    mode = mode if 0 <= mode < len(GATES) else LSTM
    return Sizes(steps, batch, shape[2], max(1, hidden), max(1, layers), 1 + both, mode, training)


# Cases to measure


def _weights(dtype: str, mode: int, inputs: int, hidden: int, layers: int, directions: int) -> list[Tensor]:
    """For each layer and direction: weights of the input and of the state, and a bias of each."""
    found: list[Tensor] = []
    for layer in range(layers):
        wide = inputs if layer == 0 else hidden * directions
        rows = GATES[mode] * hidden
        one = (Tensor((rows, wide), dtype), Tensor((rows, hidden), dtype), *(Tensor((rows,), dtype),) * 2)
        found += [*one] * directions
    return found


def _on_cpu(draw: Draw) -> Op:
    hidden, inputs, steps = draw.whole(8, 64), draw.whole(8, 64), draw.whole(4, 32)
    batch = draw.whole(1, 8)
    x, state = Tensor((steps, batch, inputs), "float32"), Tensor((1, batch, hidden), "float32")
    weights = _weights("float32", LSTM, inputs, hidden, 1, 1)
    sizes: tuple[Value, ...] = (False, [], LSTM, hidden, 1, True, False, False, draw.chance(0.5))
    return Op(ON_CPU, (x, *weights, state, state, *sizes), overload="default")
