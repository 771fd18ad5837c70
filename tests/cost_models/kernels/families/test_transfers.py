"""Copies between host and device: pinned memory is fast, and known of a sketch and of a recording."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from foretrace.analysis.report import StepReport
from foretrace.api import predict
from foretrace.cost_models.kernels.families import FAMILIES, context_of
from foretrace.cost_models.kernels.pricing import price_kernels
from foretrace.cost_models.kernels.roofline import MODEL
from foretrace.graph import Constant, Graph, KernelTable, Names, Op, OpTable, Storage, Tensor, Tf32, Value
from foretrace.graph.tables import COPY
from foretrace.platform.platform import Platform
from foretrace.record.sketch.sketch import sketch

H200 = Platform.named("h200")
BATCH = Tensor((64, 1 << 18), "float32", "cpu", storage=7)
MOVED = Tensor((64, 1 << 18), "float32", "cuda:0", storage=8)


def copied(pinned: bool = False, non_blocking: bool = False, *names: str) -> Graph:
    kwargs: dict[str, Value] = {"device": Constant("device", "cuda:0"), "non_blocking": non_blocking}
    ops = OpTable.of([Op("aten::_to_copy", (BATCH,), kwargs, outputs=(MOVED,))])
    count = len(names)
    rows, nothing = np.zeros(count, np.int32), np.zeros(count, np.int64)
    kernels = KernelTable(
        name=rows, start=np.zeros(count), end=np.full(count, 9.0), stream=rows, kind=np.full(count, COPY, np.int8),
        call=rows - 1, op=rows, nbytes=nothing, grid=nothing, block=nothing, names=Names(names),
    )  # fmt: skip
    return Graph(ops, storages={7: Storage(7, BATCH.nbytes, "cpu", pinned=pinned)}, kernels=kernels)


def gbps(graph: Graph) -> float:
    return BATCH.nbytes / 1e3 / float(price_kernels(graph, np.arange(1, dtype=np.int32), H200).typical.sum())


def test_a_copy_from_pinned_memory_is_several_times_as_fast() -> None:
    assert gbps(copied(pinned=True, non_blocking=True)) > 40
    assert gbps(copied(pinned=True)) == pytest.approx(gbps(copied(pinned=True, non_blocking=True)))
    assert gbps(copied()) < 20
    assert gbps(copied(non_blocking=True)) == pytest.approx(gbps(copied())), "the device can't read that memory itself"


def test_the_name_of_a_copy_tells_that_memory_was_pinned() -> None:
    assert gbps(copied(False, False, "Memcpy HtoD (Pinned -> Device)")) > 2 * gbps(
        copied(False, False, "Memcpy HtoD (Pageable -> Device)")
    )


def test_a_move_is_the_copy_that_was_measured() -> None:
    family = FAMILIES["transfers"]
    context = context_of(family, H200.device, None, Tf32())
    move, copy = copied().ops[0], Op("aten::copy_", (MOVED, BATCH))
    assert list(family.describe(move, context).features) == list(family.describe(copy, context).features)
    assert set(price_kernels(copied(), np.arange(1, dtype=np.int32), H200).source.tolist()) == {MODEL}


@pytest.mark.parametrize("how", ["loader", "method", "factory"])
def test_a_sketch_knows_what_is_pinned(how: str) -> None:
    def build(pinned: bool) -> StepReport:
        def make_step() -> Callable[[], None]:
            weight = torch.nn.Parameter(torch.ones(1 << 18, 8, device="cuda"))
            optimizer = torch.optim.SGD([weight], lr=0.1)
            batches = iter(DataLoader(TensorDataset(torch.zeros(256, 1 << 18)), batch_size=64, pin_memory=pinned))
            batch = torch.zeros(64, 1 << 18, pin_memory=pinned)

            def step() -> None:
                data = batch if how == "factory" else torch.zeros(64, 1 << 18) if how == "method" else next(batches)[0]
                if pinned and how == "method":
                    data = data.pin_memory()
                (data.to("cuda", non_blocking=True) @ weight).sum().backward()
                optimizer.step()

            return step

        return predict(sketch(make_step, device="cuda"), on="h200")

    slow, fast = build(False), build(True)
    assert fast.device_active_ms < 0.5 * slow.device_active_ms
