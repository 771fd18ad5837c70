"""A GPT whose blocks are recomputed as a plan says, and the plans of PyTorch's own planner for it, `sac_ilp`.

A plan is a list of values of ``checkpoint``, as `foretrace whatif --set checkpoint=…` takes them: ``0-11:addmm.0``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import partial
from io import StringIO
from typing import Any
from unittest.mock import patch

import torch
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import gpt
from benchmarks.lib.workloads import Step

SHAPE = gpt.Shape(layers=16, heads=16, dim=2048, vocabulary=32000, seq=2048, batch=8)
ATTENTION = "scaled_dot_product"
H200: dict[str, Any] = {"tflops": {torch.bfloat16: 989.0, torch.float32: 67.0}, "gbps": 4800}
"""What PyTorch's estimator would ask the device for."""


def kept_by_block(plan: Sequence[str], blocks: int) -> list[set[str] | None]:
    """The calls whose results each block keeps; None for a block that is not recomputed."""
    found: list[set[str] | None] = [None] * blocks
    for text in plan:
        numbers, _, names = text.partition(":")
        first, last = map(int, numbers.split("-"))
        for number in range(first, last + 1):
            found[number] = set(filter(None, names.split("+")))
    return found


def as_plan(kept: Sequence[set[str] | None]) -> list[str]:
    """The plan of some blocks."""
    return [
        f"{number}-{number}" + (f":{'+'.join(sorted(names))}" if names else "")
        for number, names in enumerate(kept)
        if names is not None
    ]


def name_of(op: Any) -> str:
    """The name of an op as plans have it; attention by one name, whatever its kernel."""
    name: str = op.overloadpacket.__name__
    return ATTENTION if ATTENTION in name else name


def contexts(names: set[str]) -> object:
    """What ``torch.utils.checkpoint`` takes to keep the results of some calls."""
    wanted = {ATTENTION + name[name.rindex(".") :] if ATTENTION in name else name for name in names}
    seen: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}

    def policy(context: Any, op: Any, *_: object, **__: object) -> CheckpointPolicy:
        name, counted = name_of(op), seen[context.is_recompute]
        counted[name] += 1
        keeps = f"{name}.{counted[name] - 1}" in wanted
        return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def make_step(plan: Sequence[str] = (), shape: gpt.Shape = SHAPE, device: str = "cuda") -> Step:
    """A training step in bfloat16 under a plan."""
    with torch.device(device):
        model = gpt.GPT(shape, recompute=False).bfloat16()
        text = torch.randint(shape.vocabulary, (shape.batch, shape.seq + 1))
    for block, names in zip(model.blocks, kept_by_block(plan, shape.layers)):
        if names is not None:
            more = {"context_fn": partial(contexts, names)} if names else {}
            block.forward = partial(checkpoint, block.forward, use_reentrant=False, **more)  # type: ignore[method-assign]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten()).backward()
        optimizer.step()

    return step


@contextmanager
def estimated_on_h200() -> Iterator[None]:
    """PyTorch's roofline of an H200, on a machine without one."""
    where = "torch.utils._runtime_estimation"
    with (
        patch(f"{where}.get_device_tflops", H200["tflops"].__getitem__),
        patch(f"{where}.get_gpu_dram_gbps", lambda: H200["gbps"]),
        patch("torch.cuda.is_available", lambda: True),
        redirect_stdout(StringIO()),
    ):
        yield


class SacIlp:
    """PyTorch's planner: a mixed integer program over modules, and one over the calls of each module."""

    def __init__(self, shape: gpt.Shape = SHAPE) -> None:
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.distributed._tools.ilp_utils import (
            aggregate_stats,
            get_peak_memory_runtime_baseline,
            parse_module_info,
        )
        from torch.distributed._tools.mem_tracker import MemTracker
        from torch.distributed._tools.runtime_estimator import RuntimeEstimator
        from torch.distributed._tools.sac_estimator import SACEstimator

        device = torch.device("cpu")
        self.blocks, self.sac, memory, runtime = shape.layers, SACEstimator(), MemTracker(), RuntimeEstimator()
        with estimated_on_h200(), FakeTensorMode():
            torch.set_default_dtype(torch.bfloat16)  # fake weights can't be converted
            model = gpt.GPT(shape, recompute=False)
            torch.set_default_dtype(torch.float32)
            text = torch.randint(shape.vocabulary, (shape.batch, shape.seq))
            optimizer = torch.optim.AdamW(model.parameters(), fused=True)

            def step() -> None:
                cross_entropy(model(text).flatten(0, 1), text.flatten()).backward()
                optimizer.step()
                optimizer.zero_grad()

            memory.track_external(model, optimizer)
            with memory as tracked:
                for number in range(2):
                    step()
                    if not number:
                        tracked.reset_mod_stats()
            with runtime("operator-level-cost-model"):
                step()
            with self.sac(estimate_mode_type="operator-level-cost-model"):
                cross_entropy(model(text).flatten(0, 1), text.flatten())
            info = aggregate_stats(model, memory, runtime, self.sac, device)
            self.graph = parse_module_info(info)
        self.peak_gib = get_peak_memory_runtime_baseline(self.graph)[0] / 2**30
        """What it takes the step to need without recomputation, optimizer states left out."""

    def plan(self, budget_gib: float) -> list[str] | None:
        """Its plan for a budget of parameters, gradients and activations; None where it finds none."""
        from torch.distributed._tools.sac_ilp import get_optimal_checkpointing_policy_per_module, sac_milp

        blocks = [node["fqn"] for node in self.graph.nodes if node["fqn"].split(".")[-2:-1] == ["blocks"]]
        decisions, _, peak = sac_milp(self.graph, budget_gib, ac_units=blocks)
        if peak < 0:
            return None
        kept: list[set[str] | None] = [None] * self.blocks
        for block, discarded in decisions.items():
            stats = self.sac.sac_mod_stats[block]
            chosen = get_optimal_checkpointing_policy_per_module(stats, min(max(1 - discarded, 0.0), 1.0))
            seen: Counter[str] = Counter()
            names = set()
            for name, keeps in zip(stats.func_names, chosen):
                if keeps:
                    names.add(f"{name}.{seen[name]}")
                seen[name] += 1
            kept[int(block.rpartition(".")[2])] = names
        return as_plan(kept)
