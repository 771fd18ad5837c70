"""Sharding whatever describes tables."""

import subprocess
import sys
from dataclasses import replace

import pytest

import dlrm
from foretrace.graph import ForetraceError, Graph, Op, OpTable, Tensor
from foretrace.platform.platform import Platform
from foretrace.record.sketch.sketch import sketch
from foretrace.sharding.planner import shard
from foretrace.sharding.tables import Table
from foretrace.sharding.training_step import dense_bytes

TABLE = Tensor((10_000, 64), "float32", "cuda")
IDS, OFFSETS = (Tensor((count,), "int64", "cuda") for count in (4096, 1024))
WIDE_ELEMENTS, GIVEN, BIAS = (Tensor(shape, "float32", "cuda") for shape in ((1024, 1024), (8192, 1024), (1024,)))
LOOKUP = Op("aten::_embedding_bag", (TABLE, IDS, OFFSETS), outputs=(Tensor((1024, 64), "float32", "cuda"),))
PRODUCT = (BIAS, GIVEN, WIDE_ELEMENTS)


def test_calls_inside_others_are_counted_once():
    alone = [LOOKUP, Op("aten::addmm", PRODUCT, outputs=(GIVEN,))]
    nested = [
        LOOKUP,
        Op("aten::linear", (GIVEN, WIDE_ELEMENTS, BIAS), outputs=(GIVEN,)),
        Op("aten::addmm", PRODUCT, outputs=(GIVEN,), parent=1),
    ]
    one, other = (shard(Graph(OpTable.of(ops)), on="h200", world=2, seconds=0.2) for ops in (alone, nested))
    assert one.dense_ms > 0.1
    assert other.dense_ms == pytest.approx(one.dense_ms)


def test_a_search_that_ran_out_of_time_says_so():
    tables = [Table(f"t{n}", rows=10_000 * (n + 1), dim=64, pooling=1 + n % 7) for n in range(40)]
    hurried, patient = (shard(tables, on="h200", world=4, seconds=seconds) for seconds in (1e-9, 60.0))
    assert any("the time ran out" in note for note in hurried.notes)
    assert not any("the time ran out" in note for note in patient.notes)


def test_no_time_at_all_is_refused():
    with pytest.raises(ForetraceError, match="a search can't take nan seconds"):
        shard([Table("t", 100, 64)], world=2, seconds=float("nan"))


def test_ranks_send_the_sums_of_tables_by_rows():
    by_rows = Table("t", rows=10_000_000, dim=64, kinds=("row_wise",))
    found = shard([by_rows], on="h200", world=4, batch=1024)
    assert found.estimate.sent.min() == 3 * 1024 * 64 * 4


@pytest.fixture
def uncalibrated(monkeypatch, tmp_path):
    """A machine whose CPU was not calibrated."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


@pytest.mark.parametrize(
    ("on", "fabric", "said"),
    [
        ("cpu", None, "collectives between processes .* were not measured.*calibrate fabric --out DIR.*--fabric"),
        ("cpu:host=2", None, "collectives between processes of this machine were not measured"),
        ("cpu", "nowhere", "no fabric is called 'nowhere'"),
    ],
)
def test_ranks_on_a_cpu_without_a_fabric_are_refused(uncalibrated, on, fabric, said):
    with pytest.raises(ForetraceError, match=said):
        shard([Table("t", 1000, 64)], world=2, on=on, fabric=fabric)


@pytest.mark.parametrize(("told", "kernels", "said"), [
    ({"optimizer": "adam", "zipf": 1.1}, "fused", True), ({"optimizer": "adam", "zipf": 1.1}, "tbe", False),
    ({"zipf": 1.1}, "fused", False), ({"optimizer": "adam"}, "fused", False),
])  # fmt: skip
def test_rows_that_hold_up_their_update_are_told(told, kernels, said):
    found = shard([Table("t", 100_000, 64, **told)], world=2, kernels=kernels)
    assert any("before an update" in note for note in found.notes) == said


def test_one_rank_needs_no_fabric():
    h200 = Platform.named("h200")
    cpu = replace(h200, device=replace(h200.device, kind="cpu", matches=""))
    found = shard([Table("t", 1000, 64)], world=1, on=cpu)
    assert (found.fabric, found.estimate.communication) == ("no fabric", {})


def test_what_the_dense_part_holds_is_no_room_for_tables():
    step = sketch(lambda: dlrm.make_step("tiny", device="cuda"), device="cuda")
    tables, whole = (shard(what, world=2, seconds=0.2) for what in ([Table("t", 1000, 64)], step))
    held = dense_bytes(step)
    assert held and whole.hbm_budget == tables.hbm_budget - held
    assert any("less" in note and "that the dense part holds" in note for note in whole.notes)
    assert shard(step, world=2, seconds=0.2, memory_gb=50).hbm_budget == 50e9


def test_a_dense_part_that_leaves_no_room_is_refused():
    h200 = Platform.named("h200")
    small = replace(h200, device=replace(h200.device, memory_gb=1e-5))
    step = sketch(lambda: dlrm.make_step("tiny", device="cuda"), device="cuda")
    with pytest.raises(ForetraceError, match=r"nothing is left for tables.*smaller --batch"):
        shard(step, world=2, on=small)


def test_another_batch_is_that_of_the_whole_step():
    step = sketch(lambda: dlrm.make_step("tiny", device="cuda"), device="cuda")
    small, large = (shard(step, world=2, seconds=1, batch=batch) for batch in (128, 2**21))
    assert large.ranks.batch == 2**21
    assert large.dense_ms > 1.5 * small.dense_ms
    assert large.step_ms > small.step_ms


def test_a_step_whose_batch_can_not_be_changed_says_so():
    ops = [LOOKUP, Op("aten::addmm", PRODUCT, outputs=(GIVEN,))]
    found = shard(Graph(OpTable.of(ops)), on="h200", world=2, seconds=0.2, batch=512)
    assert found.ranks.batch == 512
    assert any("the rest of the step stays at 1,024" in note for note in found.notes)


LISTED = """
import os, sys
from foretrace.cli import main

def listed(code):
    print(*sorted(name for name in sys.modules if name.partition(".")[0] == "foretrace"), file=sys.stderr)

os._exit, sys.argv = listed, ["foretrace", "shard", *sys.argv[1:]]
main.main()
"""


def test_a_list_of_tables_loads_no_simulation_and_few_modules(tmp_path):
    """Kernel models are asked for other optimizers than SGD; nothing of a step is predicted."""
    (tmp_path / "tables.csv").write_text("name,rows,dim,zipf,optimizer\nt,100000,64,1.05,rowwise_adagrad\n")
    command = [sys.executable, "-c", LISTED, tmp_path / "tables.csv", "--world", "8"]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stderr.split()
    assert "foretrace.sharding.planner" in loaded
    assert not [name for name in loaded if name.startswith(("foretrace.simulation", "foretrace.prediction.job"))]
    assert len(loaded) <= 80
