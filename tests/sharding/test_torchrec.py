"""TorchRec both ways: its tables in, a plan that it loads out, and our models in its planner."""

import warnings
from types import SimpleNamespace

import pytest

from foretrace.graph import ForetraceError
from foretrace.sharding.options import Ranks
from foretrace.sharding.plan import Placement
from foretrace.sharding.tables import Table

warnings.simplefilter("ignore")
torch = pytest.importorskip("torch")
torchrec = pytest.importorskip("torchrec")

from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology  # noqa: E402
from torchrec.modules.embedding_configs import DataType  # noqa: E402

from foretrace.sharding.planner import shard  # noqa: E402
from foretrace.sharding.torchrec import plan_of, sharding_plan, tables_of  # noqa: E402

PLACED = {
    "t0": Placement("table_wise", (3,)),
    "t1": Placement("column_wise", (0, 2)),
    "t2": Placement("row_wise", (0, 1, 2, 3)),
    "t3": Placement("table_row_wise", (2, 3)),
    "t4": Placement("data_parallel", (0, 1, 2, 3)),
}
TWO_NODES = Ranks(world=4, per_node=2, batch=64)


def model(count=5):
    configs = [
        torchrec.EmbeddingBagConfig(
            name=f"t{place}", num_embeddings=10_000 * (place + 1), embedding_dim=64, feature_names=[f"f{place}"]
        )
        for place in range(count)
    ]
    return torch.nn.Sequential(torchrec.EmbeddingBagCollection(tables=configs, device=torch.device("meta")))


def test_tables_are_read_with_their_constraints():
    told = {"t1": ParameterConstraints(pooling_factors=[7.0], sharding_types=["row_wise", "table_column_wise"])}
    tables = tables_of(model(2), told)
    assert tables[0] == Table("t0", 10_000, 64)
    assert (tables[1].pooling, tables[1].kinds) == (7.0, ("row_wise", "column_wise"))


def with_features(count, kind=torchrec.EmbeddingBagConfig, collection=torchrec.EmbeddingBagCollection):
    """A model with one table that so many features look up."""
    config = kind(name="t", num_embeddings=100_000, embedding_dim=64, feature_names=[f"f{n}" for n in range(count)])
    return torch.nn.Sequential(collection(tables=[config], device=torch.device("meta")))


@pytest.mark.parametrize(
    ("factors", "pooling"), [(None, 1.0), ({"pooling_factors": [2.0, 4.0, 6.0]}, 4.0), ({"min_partition": 32}, 1.0)]
)
def test_a_table_has_an_embedding_for_each_of_its_features(factors, pooling):
    told = None if factors is None else {"t": ParameterConstraints(**factors)}
    (table,) = tables_of(with_features(3), told)
    assert (table.features, table.pooling, table.ids) == (3, pooling, 3 * pooling)
    (words,) = tables_of(with_features(3, torchrec.EmbeddingConfig, torchrec.EmbeddingCollection), told)
    assert words.embeddings(10) == 30 * pooling


def test_features_of_a_table_are_exchanged_one_and_all():
    one, three = (shard(with_features(count), world=2, memory_gb=10, kernels="tbe") for count in (1, 3))
    assert three.estimate.sent.sum() == 3 * one.estimate.sent.sum() > 0


def test_a_model_without_tables_is_refused():
    with pytest.raises(ForetraceError, match="no embedding tables"):
        tables_of(torch.nn.Linear(2, 2))


def test_a_table_of_a_dtype_that_nobody_prices_is_refused():
    config = torchrec.EmbeddingBagConfig(
        name="t", num_embeddings=9, embedding_dim=8, feature_names=["f"], data_type=DataType.NFP8
    )
    with pytest.raises(ForetraceError, match="table t is of dtype NFP8"):
        tables_of(torchrec.EmbeddingBagCollection(tables=[config], device=torch.device("meta")))


def test_tables_with_an_optimizer_in_their_backward_are_looked_up_by_fused_kernels():
    from torch.distributed.optim import _apply_optimizer_in_backward

    whole = model(1)
    _apply_optimizer_in_backward(torch.optim.SGD, whole.parameters(), {"lr": 0.1})
    how = sharding_plan(whole, (Placement("table_wise", (0,)),), tables_of(whole), TWO_NODES).plan["0"]["t0"]
    assert how.compute_kernel == "fused"


def test_tables_of_sequences_are_read_and_planned_too():
    config = torchrec.EmbeddingConfig(name="words", num_embeddings=1000, embedding_dim=64, feature_names=["f"])
    words = torch.nn.Sequential(torchrec.EmbeddingCollection(tables=[config], device=torch.device("meta")))
    tables = tables_of(words)
    assert tables == [Table("words", 1000, 64, sequence=True)]
    plan = (Placement("table_wise", (1,)),)
    assert plan_of(sharding_plan(words, plan, tables, TWO_NODES), tables) == plan


def test_a_plan_comes_back_from_torchrec_as_it_went():
    tables = tables_of(model())
    made = sharding_plan(model(), tuple(PLACED.values()), tables, TWO_NODES)
    assert plan_of(made, tables) == tuple(PLACED.values())
    how = made.plan["0"]
    assert [list(s.shard_sizes) for s in how["t1"].sharding_spec.shards] == [[20_000, 32], [20_000, 32]]
    assert [str(s.placement.rank()) for s in how["t3"].sharding_spec.shards] == ["2", "3"]


def test_a_plan_for_another_model_is_refused():
    tables = tables_of(model(2))
    with pytest.raises(ForetraceError, match="nothing of table t2"):
        sharding_plan(model(3), tuple(PLACED.values())[:2], tables, TWO_NODES)


def test_torchrec_loads_a_plan_of_ours(tmp_path):
    import torch.distributed as dist
    from torchrec.distributed import DistributedModelParallel

    configs = [
        torchrec.EmbeddingBagConfig(name=f"t{n}", num_embeddings=100, embedding_dim=16, feature_names=[f"f{n}"])
        for n in range(3)
    ]
    whole = torch.nn.Sequential(torchrec.EmbeddingBagCollection(tables=configs, device=torch.device("cpu")))
    found = shard(whole, world=1)
    plan = sharding_plan(whole, found.plan, found.tables, found.ranks, device="cpu")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1)
    try:
        sharded = DistributedModelParallel(whole, device=torch.device("cpu"), plan=plan)
        ids = torchrec.KeyedJaggedTensor.from_offsets_sync(
            keys=["f0", "f1", "f2"], values=torch.arange(6), offsets=torch.arange(0, 7)
        )
        assert sharded(ids).values().shape == (2, 48)
    finally:
        dist.destroy_process_group()


def test_our_models_guide_its_planner():
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
    from torchrec.distributed.planner.shard_estimators import EmbeddingStorageEstimator

    from foretrace.sharding.torchrec import ForetraceEstimator

    topology = Topology(world_size=2, compute_device="cuda", hbm_cap=10**11, local_world_size=2)
    constraints = {f"t{n}": ParameterConstraints(pooling_factors=[1.0 + 20 * (n % 2)]) for n in range(4)}
    ours = ForetraceEstimator(topology, constraints)
    enumerator = EmbeddingEnumerator(
        topology, 512, constraints, estimator=[ours, EmbeddingStorageEstimator(topology, constraints)]
    )
    planner = EmbeddingShardingPlanner(topology, 512, enumerator=enumerator, constraints=constraints, debug=False)
    plan = plan_of(planner.plan(model(4), [EmbeddingBagCollectionSharder()]), tables_of(model(4)))
    heavy = [placement for n, placement in enumerate(plan) if n % 2]
    assert len({placement.ranks for placement in heavy}) == 2 or any(len(p.ranks) > 1 for p in heavy)


def estimated(sharding_type, dtype=torch.float32, shards=1, pooled=True, features=1):
    """What the first shard of a table of 100,000 rows of 64 takes on two nodes, by the estimator."""
    from foretrace.sharding.torchrec import ForetraceEstimator

    topology = Topology(world_size=4, compute_device="cuda", hbm_cap=10**11, local_world_size=2)
    option = SimpleNamespace(
        name="t", tensor=torch.empty(100_000, 64, dtype=dtype, device="meta"), input_lengths=[8.0], batch_size=4096,
        is_pooled=pooled, module=("0", with_features(features)[0]),
        sharding_type=sharding_type, shards=[SimpleNamespace(perf=None) for _ in range(shards)],
    )  # fmt: skip
    ForetraceEstimator(topology).estimate([option])
    return option.shards[0].perf


def test_the_estimator_counts_the_features_that_the_planner_leaves_out():
    one, three = estimated("table_wise"), estimated("table_wise", features=3)
    assert three.fwd_comms > 2 * one.fwd_comms
    assert three.fwd_compute == pytest.approx(3 * one.fwd_compute)


def test_the_estimator_knows_dtypes_sequences_and_what_crosses_nodes():
    plain = estimated("table_wise")
    assert estimated("table_wise", torch.float16).fwd_compute < 0.8 * plain.fwd_compute
    assert estimated("table_wise", pooled=False).fwd_comms > 4 * plain.fwd_comms
    assert estimated("table_row_wise", shards=2).fwd_comms > estimated("row_wise", shards=4).fwd_comms / 4
