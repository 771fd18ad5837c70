"""The public functions: reading, observing and predicting what a path or a graph holds."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import foretrace as ft
from foretrace.api import as_job, load, predict, scaling
from foretrace.graph import Collective, ForetraceError, Graph, Job, Op, OpTable, Tensor
from foretrace.transforms.parallel.parallelize import parallelize
from tests.analysis import builders
from tests.cli.samples import step_of_two_ops
from tests.transforms.parallel.steps import gpt_step

SQUARE = Tensor((2048, 2048), "bfloat16", "cuda:0", id=0, storage=0)


def rank(number: int = 0, world: int = 8, ranks: tuple[int, ...] = ()) -> Graph:
    """A product, an all_reduce of its result, and a product that needs it."""
    ops = [
        Op("aten::mm", (SQUARE, SQUARE), outputs=(SQUARE,), phase="backward"),
        Op("c10d::allreduce_", ([SQUARE],), outputs=([SQUARE],), phase="backward"),
        Op("aten::mm", (SQUARE, SQUARE), outputs=(SQUARE,), phase="backward"),
    ]
    reduce = Collective("all_reduce", "0", SQUARE.nbytes, -1, 1, ranks or tuple(range(world)))
    return Graph(OpTable.of(ops), rank=number, world=world, collectives=[reduce], source="train.py")


def test_one_rank_of_a_job_is_priced_on_the_fabric_that_fits_its_gpus() -> None:
    forecast = predict(rank(), on="h200")
    assert forecast.fabric == "h200-8x" and forecast.exposed_communication_ms > 0.01
    assert any("predicted alone" in note for note in forecast.notes)


def test_all_ranks_of_a_job_are_predicted_together() -> None:
    forecast = predict(Job([rank(number, 2) for number in range(2)]), on="h200")
    assert [row.rank for row in forecast.ranks] == [0, 1]
    assert not any("alone" in note for note in forecast.notes)


def test_ranks_share_how_far_the_model_of_their_host_is_off() -> None:
    small = Tensor((64, 64), "bfloat16", "cuda:0", id=1, storage=1)
    ops = [Op("aten::mm", (small, small), outputs=(small,))] * 200 + [Op("c10d::allreduce_", ([small],))]
    reduce = Collective("all_reduce", "0", small.nbytes, -1, 200, tuple(range(8)))
    forecast = predict(Job([Graph(OpTable.of(ops), rank=n, world=8, collectives=[reduce]) for n in range(8)]), "h200")
    assert forecast.workings is not None
    faster = (forecast.workings.samples_ms < forecast.step_ms).mean()
    assert 0.25 < faster < 0.75, "no job is as slow as the unluckiest of eight independent hosts"
    assert forecast.low_ms < forecast.step_ms < forecast.high_ms


def test_a_named_fabric_is_taken() -> None:
    fast, slow = (predict(rank(), on="h200", fabric=name) for name in ("h100-8x", "v100-8x"))
    assert (fast.fabric, slow.fabric) == ("h100-8x", "v100-8x")
    assert slow.step_ms > fast.step_ms


def test_links_are_scaled_on_the_fabric_that_is_named() -> None:
    usual, fast = (predict(rank(), on=on, fabric="h100-8x").step_ms for on in ("h200", "h200:nvlink=4"))
    assert fast < usual
    usual, fast = (scaling(rank(), [8], on=on, fabric="h100-8x").rows[0].step_ms for on in ("h200", "h200:nvlink=4"))
    assert fast < usual


def test_more_ranks_take_longer_to_agree() -> None:
    curve = scaling(rank(), [1, 8, 64, 1024], on="h200")
    steps = [row.step_ms for row in curve.rows]
    assert steps == sorted(steps) and curve.rows[0].exposed_communication_ms == 0.0
    assert curve.rows[-1].efficiency < 1.0


def test_a_job_in_nodes_of_its_own_size_uses_the_network() -> None:
    inside = predict(rank(), on="h200", fabric="h100-2x8-p5")
    between = predict(rank(), on="h200", fabric="h100-2x8-p5", gpus_per_node=4)
    assert between.step_ms > inside.step_ms


def test_nodes_and_curves_of_nothing_are_refused() -> None:
    with pytest.raises(ForetraceError, match="gpus_per_node can't be 0"):
        predict(rank(), on="h200", gpus_per_node=0)
    with pytest.raises(ForetraceError, match="no curve can be made"):
        scaling(rank(), [])


def test_a_slow_link_slows_its_collectives() -> None:
    usual = predict(rank(), on="h200", world=8)
    slow = predict(rank(), on="h200", world=8, slow_link={5: 0.25})
    assert slow.step_ms > usual.step_ms
    assert any("rank 5's link" in note for note in slow.notes)


def test_a_graph_is_a_job_of_one() -> None:
    assert as_job(rank()).source == "train.py"


def measured_rank(number: int = 0, host: float = 100.0) -> Graph:
    """A call on the host, and an all_reduce of two A100s that took 50 us."""
    graph = builders.rank(
        builders.Call("c10d::allreduce_", 0, host),
        builders.all_reduce(host - 10, host - 5, (host, host + 50.0)),
        number=number,
    )
    graph.world, graph.device = 2, "NVIDIA A100-SXM4-80GB"
    return graph


def test_one_rank_of_a_measured_job_stands_for_a_larger_one_on_its_own_machine() -> None:
    job = Job([measured_rank(), measured_rank(1, host=300.0)])
    alone, eight = (predict(job, world=world) for world in (1, 8))
    assert eight.platform == alone.platform == "its own machine" and eight.world == 8
    assert alone.step_ms == pytest.approx(0.1, rel=0.1), "rank 0's host, and nobody to talk to"
    assert eight.step_ms > alone.step_ms and eight.coverage["measured"] == 0.0, "no transfer is the trace's"
    assert predict(measured_rank(), world=8).step_ms == pytest.approx(eight.step_ms)


def test_one_of_the_ranks_that_a_measured_one_stands_for_may_be_slow() -> None:
    usual, slow = (predict(measured_rank(), world=8, slow_host=slow) for slow in ({}, {3: 2.0}))
    assert slow.step_ms == pytest.approx(usual.step_ms + 0.1, rel=0.1)
    assert [row.stands_for for row in slow.ranks] == [7, 1]


def test_a_job_that_a_measured_step_was_made_into_is_on_nobody_s_machine() -> None:
    ops = list(gpt_step().ops)
    for place, op in enumerate(ops):
        op.start_us, op.end_us = 2.0 * place, 2.0 * place + 1.0
    job = parallelize(replace(gpt_step(), ops=OpTable.of(ops)), pipeline=2)
    forecast = predict(job)
    assert len(job.graphs) == 2 and forecast.platform == "h200" and forecast.kernels > 0


def test_a_curve_stays_on_the_machine_too() -> None:
    curve = scaling(Job([measured_rank(), measured_rank(1)]), [1, 2, 8])
    assert curve.platform == "its own machine"
    assert [row.fabric for row in curve.rows] == [None, "a100-8x-nvswitch", "a100-8x-nvswitch"]
    assert scaling(rank(), [2]).platform == "h200", "nobody measured it"


def test_a_machine_whose_fabric_nobody_knows_has_to_be_given_one() -> None:
    cpu = builders.rank(builders.Call("aten::mm", 0, 100))
    cpu.world = 2
    with pytest.raises(ForetraceError, match="no shipped fabric is known for a CPU"):
        predict(cpu, world=4)
    graph = measured_rank()
    graph.device = ""
    with pytest.raises(ForetraceError, match="no shipped fabric is known for GPUs that the traces do not name"):
        predict(graph, world=4)
    assert predict(graph, world=4, fabric="a100-8x-nvswitch").platform == "its own machine"


@pytest.mark.parametrize("kernels", ["model", "measured"])
def test_no_option_selects_an_engine(shared: Path, kernels: str) -> None:
    trace = shared / "traces/h200/dlrm_default_b512"
    plain, per_node = (predict(trace, "h200", kernels, gpus_per_node=many) for many in (None, 8))
    assert per_node.to_dict() == plain.to_dict()


def test_a_job_of_one_rank_is_that_rank_alone(shared: Path) -> None:
    job = load(shared / "traces/h200/dlrm_default_b512")
    whole, alone = predict(job, "h200"), predict(replace(job.graphs[0], source=job.source), "h200")
    assert alone.to_dict() == whole.to_dict()


def test_a_path_is_read_first(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(step_of_two_ops()))
    assert ft.observe(str(path)).to_dict() == ft.observe(ft.load(path)).to_dict()


def test_a_folder_of_recordings_is_refused_with_their_names() -> None:
    examples = Path(__file__).parents[1] / "examples"  # traces of another job lie there too
    with pytest.raises(ForetraceError, match="is no recording, and holds 4") as refused:
        ft.load(examples)
    assert str(examples / "dlrm-h200") in refused.value.advice


def test_a_path_with_nothing_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ForetraceError, match="missing"):
        ft.observe(tmp_path / "missing.json")
