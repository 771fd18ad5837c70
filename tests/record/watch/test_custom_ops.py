"""Lookups of others: FBGEMM's table-batched ones, on their CPU build, alone and under TorchRec."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import foretrace as ft
from foretrace.graph import Constant, Graph, Indices
from tests.record.jobs import SHORT

pytest.importorskip("fbgemm_gpu", reason="FBGEMM is not installed: see the Makefile's test target")
pytest.importorskip("torchrec", reason="TorchRec is not installed: see the Makefile's test target")

BATCH = 4
TABLES = [(100, 8), (50, 4), (7, 16)]
"""Rows and width."""


def ids_of(features: list[int], pooling: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids of a batch, feature by feature, for the tables that the features read; and where bags begin."""
    generator = torch.Generator().manual_seed(0)
    ids = [torch.randint(TABLES[table][0], (BATCH * pooling,), generator=generator) for table in features]
    return torch.cat(ids), torch.arange(0, len(features) * BATCH * pooling + 1, pooling)


def batched_lookup(features: list[int]) -> tuple[Callable[[], None], torch.Tensor]:
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        EmbeddingLocation,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    tables = SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, width, EmbeddingLocation.HOST, ComputeDevice.CPU) for rows, width in TABLES],
        feature_table_map=features,
        optimizer=EmbOptimType.EXACT_SGD,
        learning_rate=0.1,
    )
    ids, offsets = ids_of(features)

    def step() -> None:
        tables(ids, offsets).sum().backward()

    return step, ids


def reported(found: Indices) -> tuple[int, ...]:
    return found.rows, found.count, found.unique, found.bags


def expected(features: list[int], ids: torch.Tensor) -> list[tuple[int, ...]]:
    parts = ids.numpy().reshape(len(features), -1)
    return [(TABLES[table][0], part.size, len(np.unique(part)), BATCH) for table, part in zip(features, parts)]


def recorded(step: Callable[[], Any], folder: Path) -> Graph:
    (graph,) = ft.load(ft.record_step(step, folder / "r", **SHORT)).graphs
    return graph


@pytest.mark.parametrize("features", [[0, 1, 2], [0, 0, 1, 2, 2]], ids=["one feature a table", "shared tables"])
def test_a_batched_lookup_is_recorded_with_the_statistics_of_each_feature(features: list[int], tmp_path: Path) -> None:
    step, ids = batched_lookup(features)
    graph = recorded(step, tmp_path)
    names = [op.name for op in graph.ops]
    (lookup,) = [row for row, name in enumerate(names) if name.startswith("fbgemm::") and "forward" in name]
    assert any(name.startswith("fbgemm::") and "backward" in name for name in names)
    assert {found.op for found in graph.indices} == {lookup}
    assert [reported(found) for found in graph.indices] == expected(features, ids)
    assert graph.notes == ["100.0 % of the recorded calls found in the profile"]


def test_a_batched_lookup_keeps_every_argument(tmp_path: Path) -> None:
    step, ids = batched_lookup([0, 1, 2])
    graph = recorded(step, tmp_path)
    lookup = graph.ops[graph.indices[0].op]
    opaque = [v for v in (*lookup.args, *lookup.kwargs.values()) if isinstance(v, Constant) and v.kind == "object"]
    assert not opaque
    assert ids.shape in [tensor.shape for tensor in lookup.tensors]
    assert lookup.produced[0].shape == (BATCH, sum(width for _, width in TABLES))


def test_a_collection_of_torchrec_is_recorded_with_its_tables(tmp_path: Path) -> None:
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor

    configs = [
        EmbeddingBagConfig(name=f"t{n}", embedding_dim=width, num_embeddings=rows, feature_names=[f"f{n}"])
        for n, (rows, width) in enumerate(TABLES)
    ]
    tables = EmbeddingBagCollection(tables=configs)
    optimizer = torch.optim.SGD(tables.parameters(), lr=0.1)
    ids, offsets = ids_of([0, 1, 2])
    features = KeyedJaggedTensor(keys=["f0", "f1", "f2"], values=ids, offsets=offsets)

    def step() -> None:
        optimizer.zero_grad()
        tables(features).values().sum().backward()
        optimizer.step()

    graph = recorded(step, tmp_path)
    lookups = {graph.ops[found.op].name for found in graph.indices}
    assert lookups == {"aten::_embedding_bag"}
    assert [reported(found) for found in graph.indices] == expected([0, 1, 2], ids)
    assert any("EmbeddingBagCollection" in op.module for op in graph.ops)
