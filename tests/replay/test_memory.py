"""Steps that do not fit, and recordings that understate what their calls make."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from foretrace.graph import Graph, Op, OpTable, Tensor
from foretrace.replay.generate.choices import Choices
from foretrace.replay.generate.folder import write_benchmark
from foretrace.replay.harness import memory
from foretrace.replay.harness.memory import bytes_made, check_fits, free_bytes
from tests.processes import PATIENCE_S


def test_a_step_that_fits_is_not_refused() -> None:
    check_fits({"peak": 1 << 20, "lasting": 0, "batch": None}, "cpu")


def test_meta_tensors_take_no_memory() -> None:
    check_fits({"peak": 1 << 60, "lasting": 0, "batch": None}, "meta")


@pytest.mark.parametrize(
    ("lasting_gib", "batch", "ranks", "said"),
    [
        (
            1,
            64,
            1,
            r"8\.0 GiB at its peak, and 4\.0 GiB are free on this cpu; .*: --batch 27 \(it is 64\), --device meta",
        ),
        (1, None, 1, r"fit: a batch of 42 % of the original's, --device meta"),
        (6, 64, 1, r"at its peak, 6\.0 GiB of it in any batch, and .* fit: --device meta"),
        (1, 64, 3, r"on each of 3 ranks, .* fit: --batch 3 \(it is 64\), --device meta"),
    ],
)
def test_a_step_that_does_not_fit_is_told_what_would(
    lasting_gib: int, batch: int | None, ranks: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda kind: 4 << 30)
    with pytest.raises(MemoryError, match=said):
        check_fits({"peak": 8 << 30, "lasting": lasting_gib << 30, "batch": batch}, "cpu", ranks)


def test_fewer_ranks_are_named_where_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda kind: 5 << 30)
    with pytest.raises(MemoryError, match="--ranks 2"):
        check_fits({"peak": 2 << 30, "lasting": 0, "batch": 8}, "cpu", 4)


def test_no_more_is_free_than_a_container_may_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "limit").write_text("1048576\n")
    (tmp_path / "none").write_text("max\n")
    monkeypatch.setattr(memory, "LIMITS", [tmp_path / "none", tmp_path / "nowhere", tmp_path / "limit"])
    assert free_bytes("cpu") == 1 << 20


HUGE = 1_500_000_000
"""Elements: 6 GB of float32, more than a replay of tensors of a few bytes may take."""
SIDE = 40_000
"""Whose square is as many."""


def tensor(number: int, shape: tuple[int, ...] = (1,), dtype: str = "float32", **facts: Any) -> Tensor:
    stride = tuple(torch.empty(shape, device="meta").stride())
    return Tensor(
        **{"shape": shape, "dtype": dtype, "device": "cpu", "stride": stride, **facts}, id=number, storage=number
    )


SMALL, ROW, COLUMN = tensor(0, (10,)), tensor(1, (1, SIDE)), tensor(2, (SIDE, 1))
IDS, SQUARE = tensor(3, (10,), "int64"), tensor(4, (100, 100))
LONG = tensor(5, (10_000_000,))
SAID = tensor(9)
"""What each of them says that it makes: a float."""

LIES = {
    "zeros": [Op("aten::zeros", ([HUGE],), overload="default")],
    "full": [Op("aten::full", ([HUGE], 1.0), overload="default")],
    "empty": [Op("aten::empty", ([HUGE],), overload="memory_format")],
    "empty_strided": [Op("aten::empty_strided", ([2], [HUGE]), overload="default")],
    "arange": [Op("aten::arange", (HUGE,), overload="default")],
    "linspace": [Op("aten::linspace", (0.0, 1.0, HUGE), overload="default")],
    "eye": [Op("aten::eye", (SIDE,), overload="default")],
    "randn": [Op("aten::randn", ([HUGE],), overload="default")],
    "randperm": [Op("aten::randperm", (HUGE,), overload="default")],
    "new_zeros": [Op("aten::new_zeros", (SMALL, [HUGE]), overload="default")],
    "repeat": [Op("aten::repeat", (SMALL, [HUGE // 10]), overload="default")],
    "cat of many": [Op("aten::cat", ([LONG] * 150,), overload="default")],
    "stack of many": [Op("aten::stack", ([LONG] * 150,), overload="default")],
    "one_hot": [Op("aten::one_hot", (IDS, HUGE // 10), overload="default")],
    "pad": [Op("aten::constant_pad_nd", (SMALL, [0, HUGE]), overload="default")],
    "index_select": [Op("aten::index", (SQUARE, [tensor(6, (10_000_000,), "int64")]), overload="Tensor")],
    "repeat_interleave": [Op("aten::repeat_interleave", (IDS, HUGE // 10), overload="self_int")],
    "broadcast add": [Op("aten::add", (COLUMN, ROW), overload="Tensor")],
    "outer product": [Op("aten::mm", (COLUMN, ROW), overload="default")],
    "upsample": [Op("aten::upsample_nearest1d", (tensor(7, (1, 1, 1)), [HUGE]), overload="default")],
    "resize_": [Op("aten::resize_", (SMALL, [HUGE]), overload="default")],
    "expand and contiguous": [
        Op("aten::expand", (SAID, [HUGE]), outputs=(tensor(8, (10,), stride=(0,)),), overload="default"),
        Op("aten::clone", (tensor(8, (10,), stride=(0,)),), overload="default"),
    ],
}


def lying(ops: list[Op]) -> Graph:
    for op in ops:
        op.outputs = op.outputs or (Tensor((1,), "float32", "cpu", (1,), id=99, storage=99),)
    good = Op("aten::relu", (tensor(20),), outputs=(tensor(21),), overload="default")
    return Graph(OpTable.of([*ops, good]))


@pytest.mark.parametrize("name", LIES)
def test_a_call_that_makes_more_than_it_says_is_not_made(name: str, loaded: Callable[..., Any]) -> None:
    graph = lying(LIES[name])
    benchmark = loaded(graph)
    failed = benchmark.source.failures[-1]
    assert failed.number == len(graph.ops) - 2 and benchmark.called >= {len(graph.ops) - 1}
    assert "TooLargeError: it would make" in failed.error and "GiB, and the recording says 4.0 B" in failed.error


@pytest.mark.parametrize("name", LIES)
def test_it_is_not_made_either_where_no_limit_can_be_put_on_memory(
    name: str, loaded: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "resource", None)
    assert "it would make" in loaded(lying(LIES[name])).source.failures[-1].error


MEASURED = "import resource, subprocess, sys; code = subprocess.run(sys.argv[1:]).returncode\n"
MEASURED += "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10, code)"


@pytest.mark.skipif(sys.platform != "linux", reason="measures memory as Linux tells it")
def test_a_replay_of_many_lies_takes_little_memory_and_says_so(tmp_path: Path) -> None:
    several = [Op(op.name, op.args, op.kwargs, op.outputs, op.overload) for ops in LIES.values() for op in ops[-1:]]
    for number, op in enumerate(several):
        op.outputs = (Tensor((1,), "float32", "cpu", (1,), id=100 + number, storage=100 + number),)
    folder = write_benchmark(lying(several), tmp_path / "bench", Choices())
    command = [
        sys.executable,
        "-c",
        MEASURED,
        sys.executable,
        str(folder / "run.py"),
        "--iterations",
        "1",
        "--top",
        "99",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    *_, last = done.stdout.splitlines()
    megabytes, code = map(int, last.split())
    assert code == 0, done.stderr
    assert megabytes < 3000 and "it would make" in done.stdout


def test_many_small_lies_together_are_no_better_than_a_large_one(
    loaded: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    lies = [
        Op("aten::zeros", ([5_000_000],), outputs=(tensor(100 + number),), overload="default") for number in range(100)
    ]
    kept = Op(
        "aten::cat", ([tensor(100 + number) for number in range(100)],), outputs=(tensor(99),), overload="default"
    )
    monkeypatch.setitem(sys.modules, "resource", None)
    benchmark = loaded(Graph(OpTable.of([*lies, kept])))
    assert 80 <= len(benchmark.source.failures) <= 90, "256 MB may be lied about, at 20 MB a time"


def test_what_needs_more_for_a_while_than_a_step_declares_is_still_made(loaded: Callable[..., Any]) -> None:
    """As an operator that works on copies of what it gets: no lie, and memory is there."""
    ran: list[str] = []
    honest = Op("aten::add", (tensor(0, (100,)), tensor(1, (100,))), outputs=(tensor(2, (100,)),), overload="Tensor")
    benchmark = loaded(Graph(OpTable.of([honest])))
    failing = iter([RuntimeError("can't allocate memory"), None, None])
    step = benchmark.source.step

    def sometimes(*inputs: torch.Tensor) -> None:
        ran.append("step")
        if (error := next(failing)) is not None:
            raise error
        step(*inputs)

    benchmark.source.step = sometimes
    benchmark.source.make_runnable(benchmark.inputs, 1200, "cpu")
    assert ran == ["step", "step"] and not benchmark.source.failures


@pytest.mark.skipif(sys.platform != "linux", reason="a limit that only Linux has")
def test_a_wall_holds_while_it_stands_and_no_longer() -> None:
    with memory.memory_limit(1 << 20, "cpu") as held:
        assert held
        with pytest.raises(RuntimeError, match="can't allocate memory"):
            torch.zeros(HUGE * 4)
    assert torch.empty(HUGE).numel() == HUGE


def test_there_is_no_wall_around_what_takes_no_memory() -> None:
    with memory.memory_limit(0, "meta") as held:
        assert not held


def test_sizes_of_results_are_known_beforehand() -> None:
    aten, ids = torch.ops.aten, torch.tensor([7, 3])
    assert bytes_made(aten.bincount.default, (ids,), {"minlength": 4}) == 8 * 8
    assert bytes_made(aten.bincount.default, (ids,), {"minlength": 40}) == 40 * 8
    assert bytes_made(aten.repeat_interleave.Tensor, (ids,), {}) == 10 * 8
    assert bytes_made(aten.add.out, (torch.ones(3, 1), torch.ones(1, 4)), {"out": torch.empty(0)}) == 48
    assert bytes_made(aten.add_.Tensor, (torch.ones(3), torch.ones(3)), {}) == 0
    assert bytes_made(aten.rand.generator, ([10],), {"generator": torch.default_generator}) == 40
    assert bytes_made(aten.nonzero.default, (ids,), {}) == 0, "only the data tells"


def test_who_edits_the_step_may_make_what_fits(loaded: Callable[..., Any], tmp_path: Path) -> None:
    graph = lying([Op("aten::zeros", ([80_000_000],), overload="default")])
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(sys.modules, "resource", None)
        assert loaded(graph).source.failures, "320 MB are more than may be lied about"
        folder = next(tmp_path.glob("benchmark-*"))
        (folder / "step.py").write_text((folder / "step.py").read_text() + "# mine\n")
        again = sys.modules["harness.benchmark"].Benchmark(folder)
        assert not again.source.failures and again.called == {0, 1}
