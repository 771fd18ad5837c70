"""Steps whose linear layers are in float8, shared by ranks: GEMMs are split as others are, and so are the scales."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402

from foretrace.graph import Graph, Job  # noqa: E402
from foretrace.record.sketch.sketch import sketch  # noqa: E402
from foretrace.transforms.parallel.parallelize import parallelize  # noqa: E402

MODELS = str(Path(__file__).resolve().parents[3] / "benchmarks" / "models")
BATCH, SEQ, PRESET = 2, 32, "tiny"


@cache
def step(float8: bool) -> Graph:
    """A step of the benchmark's tiny Llama."""
    sys.path.insert(0, MODELS)
    try:
        from llama import SHAPES, Llama
    finally:
        sys.path.remove(MODELS)

    def build() -> Callable[[], Any]:
        with torch.device("cuda"):
            model = Llama(SHAPES[PRESET], SEQ, "", float8)
            angles = model.angles
            model.bfloat16().angles = angles
            text = torch.randint(SHAPES[PRESET].vocabulary, (BATCH, SEQ + 1))
        optimizer = torch.optim.AdamW(model.parameters())

        def train() -> None:
            optimizer.zero_grad()
            functional.cross_entropy(model(text[:, :-1]).flatten(0, 1).float(), text[:, 1:].flatten()).backward()
            optimizer.step()

        return train

    return sketch(build, device="cuda")


def flops(graph: Graph, name: str) -> int:
    return sum(
        2 * op.tensors[0].numel * op.tensors[1].shape[-1]
        for op in graph.ops
        if op.name == name and op.module.startswith("Llama.layers")
    )


def collectives(job: Job, least: int = 2) -> list[tuple[str, int]]:
    """Kinds and elements of what ranks exchange, scales apart."""
    graph = job.graphs[0]
    return sorted(
        (one.kind, size)
        for one in graph.collectives
        if (size := max((t.numel for t in graph.ops[one.op].tensors), default=0)) >= least
    )


WAYS = (
    {"tensor": 2}, {"tensor": 2, "sequence": True}, {"context": 2}, {"data": 2, "sharded": True},
    {"data": 2, "tensor": 2, "sequence": True, "sharded": True}, {"pipeline": 2, "microbatches": 2},
)  # fmt: skip


@pytest.mark.parametrize("how", WAYS, ids=str)
def test_gemms_in_float8_are_shared_as_others_are(how: dict[str, Any]) -> None:
    plain, narrow = (parallelize(step(float8), **how) for float8 in (False, True))
    share = flops(plain.graphs[0], "aten::mm") / flops(step(False), "aten::mm")
    assert flops(narrow.graphs[0], "aten::_scaled_mm") == share * flops(step(True), "aten::_scaled_mm")


@pytest.mark.parametrize("how", WAYS[:1], ids=str)
def test_ranks_exchange_the_same_activations_as_in_half_precision(how: dict[str, Any]) -> None:
    plain, narrow = (collectives(parallelize(step(float8), **how)) for float8 in (False, True))
    assert plain == narrow


def test_sequences_are_gathered_in_float8() -> None:
    job = parallelize(step(True), tensor=2, sequence=True)
    gathered = {
        tensor.dtype
        for one in job.graphs[0].collectives
        if one.kind == "all_gather"
        for tensor in job.graphs[0].ops[one.op].tensors
    }
    assert {"float8_e4m3fn", "float8_e5m2"} <= gathered


def test_the_largest_element_of_a_tensor_is_that_of_all_its_parts() -> None:
    def of_numbers(float8: bool) -> int:
        job = parallelize(step(float8), tensor=2)
        return len(collectives(job, 1)) - len(collectives(job))

    assert of_numbers(True) > of_numbers(False) + 10
