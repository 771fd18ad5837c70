"""Jobs of TorchRec's DistributedModelParallel, sketched as a rank of many for a GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

from foretrace.graph import Graph
from foretrace.record.sketch.sketch import sketch

pytest.importorskip("torchrec")
pytest.importorskip("fbgemm_gpu")

FEATURES, BATCH, ROWS, WORLD = 8, 16, 1000, 4
SPLIT = "fbgemm::split_embedding_"


def dlrm(sharding: str, optimizer: Any = None, random: bool = False, kernel: str = "fused") -> Callable[[], Any]:
    """A DLRM whose tables are sharded one way, as a function that builds it and returns its step."""
    from torch import distributed as dist
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.model_parallel import DistributedModelParallel
    from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
    from torchrec.distributed.planner.types import ParameterConstraints
    from torchrec.models.dlrm import DLRM, DLRMTrain
    from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

    def build() -> Callable[[], None]:
        device = torch.device("cuda")
        keys = [f"f{number}" for number in range(FEATURES)]
        tables = [
            EmbeddingBagConfig(num_embeddings=ROWS, embedding_dim=64, name=key, feature_names=[key]) for key in keys
        ]
        collection = EmbeddingBagCollection(tables=tables, device=torch.device("meta"))
        network = DLRMTrain(DLRM(collection, 13, [32, 64], [32, 1], dense_device=device))
        if optimizer is not None:
            apply_optimizer_in_backward(optimizer, collection.parameters(), {"lr": 0.1})
        only = ParameterConstraints(sharding_types=[sharding], compute_kernels=[kernel])
        planner = EmbeddingShardingPlanner(
            topology=Topology(world_size=WORLD, compute_device="cuda"), constraints=dict.fromkeys(keys, only)
        )
        sharder = EmbeddingBagCollectionSharder()
        plan = planner.collective_plan(network, [sharder], dist.group.WORLD)
        model = DistributedModelParallel(network, device=device, plan=plan, sharders=[sharder])
        dense = torch.optim.SGD([w for name, w in model.named_parameters() if "embedding" not in name], lr=0.1)

        def step() -> None:
            lengths = torch.randint(1, 4, (FEATURES * BATCH,)) if random else torch.ones(FEATURES * BATCH).long()
            ids = torch.randint(0, ROWS, (int(lengths.sum()),))
            jagged = KeyedJaggedTensor(keys, ids, lengths=lengths.int()).to(device)
            dense.zero_grad()
            batch = Batch(jagged, torch.randn(BATCH, 13, device=device), torch.ones(BATCH, device=device))
            model(batch)[0].backward()
            dense.step()

        return step

    return build


class Batch:
    """What DLRMTrain is given."""

    def __init__(self, sparse: Any, dense: torch.Tensor, labels: torch.Tensor) -> None:
        self.sparse_features, self.dense_features, self.labels = sparse, dense, labels


def sketched(*args: Any, **options: Any) -> Graph:
    return sketch(dlrm(*args, **options), device="cuda", world=WORLD)


def calls(graph: Graph, *prefixes: str) -> Counter[str]:
    return Counter(op.name.partition("::")[2] for op in graph.ops if op.name.startswith(prefixes))


def test_table_wise_sharding_makes_the_collectives_of_a_real_step():
    # As the published trace of eight V100: splits, lengths and ids, then embeddings and their gradients.
    graph = sketched("table_wise")
    assert calls(graph, "c10d::alltoall")["alltoall_base_"] == 5
    assert calls(graph, SPLIT) == {
        "split_embedding_codegen_forward_unweighted_pt2_wrapper": 1,
        "split_embedding_backward_codegen_sgd_unweighted_pt2_wrapper": 1,
    }


def test_a_rank_looks_up_its_own_tables_for_the_examples_of_all_ranks():
    graph = sketched("table_wise")
    lookup = next(op for op in graph.ops if op.name.startswith(f"{SPLIT}codegen_forward"))
    (made,) = lookup.produced
    assert made.shape == (BATCH * WORLD, FEATURES // WORLD * 64) and made.device == "cuda:0"
    assert any("all are predicted as that of rank 0" in note for note in graph.notes)
    assert any("other ranks send what this one has" in note for note in graph.notes)


def test_row_wise_sharding_reduces_and_scatters_partial_sums():
    graph = sketched("row_wise", random=True)
    names = calls(graph, "c10d::", "fbgemm::")
    assert names["_reduce_scatter_base_"] == names["_allgather_base_"] == names["block_bucketize_sparse_features"] == 1
    lookup = next(op for op in graph.ops if op.name.startswith(f"{SPLIT}codegen_forward"))
    ids = [tensor.numel for tensor in lookup.tensors if tensor.dtype == "int64" and len(tensor.shape) == 1]
    assert any(0.5 * FEATURES * BATCH < count < 3 * FEATURES * BATCH for count in ids)  # a quarter of four batches


@pytest.mark.parametrize("name", ["Adam", "Adagrad", "SGD"])
def test_the_optimizer_of_the_tables_runs_in_their_backward(name: str):
    graph = sketched("table_wise", optimizer=getattr(torch.optim, name))
    (backward,) = [op for op in graph.ops if op.name.startswith(f"{SPLIT}backward")]
    assert f"codegen_{name.lower()}_unweighted" in backward.name and backward.phase == "backward"


def test_data_parallel_tables_are_reduced_with_the_other_weights():
    graph = sketched("data_parallel", kernel="dense")
    assert calls(graph, "fbgemm::dense")["dense_embedding_codegen_forward_unweighted_pt2_wrapper"] == 1
    assert not calls(graph, "c10d::alltoall") and calls(graph, "c10d::allreduce_")


def test_looking_for_weights_makes_no_calls_of_the_step():
    # TorchRec's ``parameters()`` cuts its tables out of one tensor, with a call for each.
    graph = sketched("row_wise")
    assert sum(op.name == "aten::detach" for op in graph.ops) < FEATURES
