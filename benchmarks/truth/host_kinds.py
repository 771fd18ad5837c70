"""Measures host times of small steps of many kinds beside a host's calibration: what its errors come from.

On a GPU, with ``transformers`` and ``torchvision``. Steps take turns with the calibration's, round by round.

    python -m benchmarks.truth.host_kinds OUT --minutes 2

writes ``OUT/host.jsonl.gz``, the calibration; ``OUT/host_kinds.json.gz``: of each step its calls with their launches,
and microseconds of forward, backward and optimizer, in rounds, as the host alone takes them and with the device drained
after each step; and ``OUT/recordings``.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from benchmarks.lib import zoo, zoo_tasks
from benchmarks.lib.table import machine
from benchmarks.lib.workloads import Step, mlp, transformer, vision
from benchmarks.lib.zoo import CUDA, trained
from benchmarks.truth.host_truth import LLAMA, columns
from foretrace._progress import Progress
from foretrace.calibration.host.measure import measure_host
from foretrace.platform.measurements.host import HOST_FILE, read_host_runs
from foretrace.record.watch.session import record_step

IN_A_ROW = 4
PREPARED = 0.6
"""Share of the time in which steps are built and recorded; the rest is for the turns."""
KINDS_FILE = "host_kinds.json.gz"


class Phases:
    """How long backward and the optimizer took since `clear`, in microseconds."""

    def __init__(self) -> None:
        self.backward = self.optimizer = 0.0
        self._begun: list[int] = []

    def clear(self) -> None:
        self.backward = self.optimizer = 0.0

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Time every backward and every optimizer's step; what an optimizer does inside counts as its own."""
        before, grad = torch.autograd.backward, torch.autograd.grad
        autograd: Any = torch.autograd

        def timed(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            begun = time.perf_counter_ns()
            try:
                return function(*args, **kwargs)
            finally:
                self.backward += (time.perf_counter_ns() - begun) / 1e3

        begins = register_optimizer_step_pre_hook(self._begin)
        ends = register_optimizer_step_post_hook(self._end)
        autograd.backward, autograd.grad = partial(timed, before), partial(timed, grad)
        try:
            yield
        finally:
            autograd.backward, autograd.grad = before, grad
            begins.remove()
            ends.remove()

    def _begin(self, *of: Any) -> None:
        self._begun.append(time.perf_counter_ns())

    def _end(self, *of: Any) -> None:
        self.optimizer += (time.perf_counter_ns() - self._begun.pop()) / 1e3


def without_gradients(build: Callable[[], nn.Module], *shape: int, inference: bool = False) -> Step:
    """A forward of a model in evaluation mode."""
    model, x = build().to(CUDA).eval(), torch.randn(*shape, device=CUDA)

    def step() -> None:
        with torch.inference_mode() if inference else torch.no_grad():
            model(x)

    return step


def _torchvision(name: str) -> nn.Module:
    import torchvision

    return torchvision.models.get_model(name, weights=None)


def _attention(layers: int = 6) -> nn.Module:
    layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def language_forward(config: str, model: str, **sizes: Any) -> Step:
    import transformers

    made = getattr(transformers, model)(getattr(transformers, config)(**sizes)).to(CUDA).eval()
    words = torch.randint(3, 1000, (1, 16), device=CUDA)

    @torch.no_grad()
    def step() -> None:
        made(input_ids=words)

    return step


def loop(times: int, parts: int) -> Step:
    """Tiny calls without gradients, one after the other."""
    x, y = torch.randn(64, device=CUDA), torch.randn(64, device=CUDA)

    @torch.no_grad()
    def step() -> None:
        z = x
        for at in range(times):
            z = z * 0.9
            if parts > 1:
                z = z + y
            if parts > 2:
                z = torch.where(z > 0, z, y).clamp(max=float(at + 1))

    return step


def unrolled(kind: Any, length: int) -> Step:
    """A cell, step by step, with gradients."""
    model, x = kind(32, 32).to(CUDA), torch.randn(length, 8, 32, device=CUDA)

    def loss(model: Any) -> torch.Tensor:
        state: Any = None
        for part in x:
            state = model(part, state)
        return (state[0] if isinstance(state, tuple) else state).square().mean()

    return trained(model, loss)


def updated(optimizer: Any, layers: int = 8, width: int = 48) -> Step:
    model, x = mlp([width] * layers, relu_at_end=False).to(CUDA), torch.randn(16, width, device=CUDA)
    return trained(model, lambda model: model(x).square().mean(), optimizer=optimizer)


class Lion(zoo.ByWeight):
    """The sign of an average."""

    def update(self, weight: torch.Tensor, state: dict[str, torch.Tensor]) -> torch.Tensor:
        average = state.setdefault("average", torch.zeros_like(weight))
        found = average.mul(0.9).add_(weight.grad, alpha=0.1).sign_()
        average.mul_(0.99).add_(weight.grad, alpha=0.01)
        return found


def jacobians() -> Step:
    model, x = mlp([16, 32, 8], relu_at_end=False).to(CUDA), torch.randn(32, 16, device=CUDA)

    def step() -> None:
        torch.func.vmap(torch.func.jacrev(model))(x)

    return step


def twice() -> Step:
    """A derivative of a derivative."""
    model = nn.Sequential(*[part for _ in range(5) for part in (nn.Linear(32, 32), nn.Tanh())])
    at = torch.randn(64, 32, device=CUDA)

    def loss(model: Any) -> torch.Tensor:
        x = at.detach().requires_grad_()
        return torch.autograd.grad(model(x).sum(), x, create_graph=True)[0].square().mean()

    return trained(model.to(CUDA), loss)


def scanned(kind: str) -> Step:
    model, x = nn.Linear(32, 32).to(CUDA), torch.randn(8, 64, 32, device=CUDA)

    def loss(model: Any) -> torch.Tensor:
        y = model(x)
        y = torch.cumprod(torch.sigmoid(y), 1) if kind == "products" else torch.cumsum(y, 1)
        return (y * x).mean()

    return trained(model, loss)


def tables(count: int, sparse: bool = False) -> Step:
    model = nn.ModuleList([nn.Embedding(100, 8, sparse=sparse) for _ in range(count)]).to(CUDA)
    ids = [torch.randint(0, 100, (64,), device=CUDA) for _ in range(count)]

    def loss(model: Any) -> torch.Tensor:
        return torch.cat([table(each) for table, each in zip(model, ids)], 1).square().mean()

    return trained(model, loss, optimizer=partial(torch.optim.SGD))


KINDS: dict[str, Callable[[], Step]] = {
    "forward_vit": partial(without_gradients, partial(_torchvision, "vit_b_32"), 1, 3, 224, 224),
    "samples": partial(zoo.per_sample, 8),
    "crosses": partial(zoo.cross_network, 64),
    "rotary": partial(zoo.rotary, 1, 64),
    "adafactor": partial(updated, torch.optim.Adafactor),
    "lstm": partial(zoo.recurrent, "LSTM", 4, 16, 64, 2),
    "rendered": partial(zoo_tasks.rendered, 16, 32),
    "decode": partial(zoo.decoding, 1, 64),
    "muon": partial(updated, zoo.Muon),
    "loop_2": partial(loop, 100, 2),
    "forward_resnet18": partial(without_gradients, partial(_torchvision, "resnet18"), 1, 3, 64, 64),
    "forward_encoder": partial(without_gradients, _attention, 2, 16, 128),
    "lstm_bf16": partial(zoo.recurrent, "LSTM", 4, 16, 64, 2, dtype=torch.bfloat16),
    "adapted": partial(zoo_tasks.adapted, 1, 32),
    "products": partial(scanned, "products"),
    "tables": partial(tables, 12),
    "rotary_checkpointed": partial(zoo.rotary, 1, 64, checkpointed=True),
    "efficientnet_bf16": partial(vision, "efficientnet_b0", 1, bf16=True),
    "vit_bf16": partial(vision, "vit_b_32", 1, bf16=True),
    "forward_mlp": partial(without_gradients, partial(mlp, [64] * 20, relu_at_end=False), 8, 64),
    "lion": partial(updated, Lion),
    "played": partial(zoo_tasks.played, 16),
    "twice": twice,
    "sums": partial(scanned, "sums"),
    "forward_mobilenet": partial(without_gradients, partial(_torchvision, "mobilenet_v3_small"), 1, 3, 64, 64),
    "forward_mobilenet_inference_mode": partial(
        without_gradients, partial(_torchvision, "mobilenet_v3_small"), 1, 3, 64, 64, inference=True
    ),
    "forward_lstm": partial(without_gradients, partial(nn.LSTM, 32, 32, 2), 16, 4, 32),
    "forward_bert": partial(language_forward, "BertConfig", "BertForMaskedLM", hidden_size=128, num_hidden_layers=6,
                            num_attention_heads=4, intermediate_size=256),
    "forward_gpt2": partial(language_forward, "GPT2Config", "GPT2LMHeadModel", n_embd=128, n_layer=6, n_head=4),
    "forward_llama": partial(language_forward, "LlamaConfig", "LlamaForCausalLM", vocab_size=8000, **LLAMA),
    "jacobians": jacobians,
    "loop_1": partial(loop, 100, 1),
    "loop_4": partial(loop, 60, 3),
    "lstm_cells": partial(unrolled, nn.LSTMCell, 16),
    "gru_cells": partial(unrolled, nn.GRUCell, 16),
    "gru_both": partial(zoo.recurrent, "GRU", 4, 16, 64, 2, both=True),
    "adafactor_one_by_one": partial(updated, partial(torch.optim.Adafactor, foreach=False)),
    "adam_one_by_one": partial(updated, partial(torch.optim.Adam, foreach=False)),
    "adagrad": partial(updated, torch.optim.Adagrad),
    "radam": partial(updated, torch.optim.RAdam),
    "tables_sparse": partial(tables, 12, sparse=True),
    "towers": partial(zoo.two_towers, 64),
    "llama": partial(transformer, "llama", 1, 32, vocab_size=8000, **LLAMA),
    "gpt2_fp32": partial(transformer, "gpt2", 1, 32, bf16=False),
}  # fmt: skip
"""Steps so small that the host is what they wait for; those come first that forecasts of like ones were far off."""


def timed(step: Step, phases: Phases, synced: bool) -> list[float]:
    """Microseconds of all that is neither, of backward and of the optimizer; the device drained before and after."""
    phases.clear()
    begun = time.perf_counter_ns()
    step()
    if synced:
        _drain()
    whole = (time.perf_counter_ns() - begun) / 1e3
    _drain()
    return [round(us, 1) for us in (whole - phases.backward - phases.optimizer, phases.backward, phases.optimizer)]


def _drain() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("out", type=Path)
    options.add_argument("steps", nargs="*")
    options.add_argument("--minutes", type=float, default=2.0)
    chosen = options.parse_intermixed_args()
    begun, steps = time.monotonic(), {}
    truth: dict[str, Any] = {}
    for name in chosen.steps or KINDS:
        if time.monotonic() - begun > 60 * PREPARED * chosen.minutes:
            print(f"no time to record {name} and what is after it", flush=True)
            break
        try:
            with torch.device(CUDA):
                step = KINDS[name]()
            recording = record_step(step, chosen.out / "recordings" / name, plain=2, profile=1, warmup=3)
            truth[name] = {**columns(recording), "host_us": [], "synced_us": []}
            steps[name] = step
        except Exception as error:  # whatever a model's code raises: the other steps are measured still
            print(f"{name} left out: {type(error).__name__}: {str(error)[:120]}", flush=True)
    phases = Phases()

    def between(progress: Progress) -> None:
        with phases.watched():
            for name, step in steps.items():
                timed(step, phases, synced=False)
                for kind, synced in (("host_us", False), ("synced_us", True)):
                    truth[name][kind].append([timed(step, phases, synced) for _ in range(IN_A_ROW)])
        calibration = read_host_runs(chosen.out / HOST_FILE)[-1].machine["made"]
        kept = {"machine": machine(), "calibration": calibration, "steps": truth}
        (chosen.out / KINDS_FILE).write_bytes(gzip.compress(json.dumps(kept).encode(), 9, mtime=0))
        print(f"{progress.text}, {progress.done:.0f} s", flush=True)

    measure_host(chosen.out, max(0.0, chosen.minutes - (time.monotonic() - begun) / 60), between)
    return 0


if __name__ == "__main__":
    sys.exit(main())
