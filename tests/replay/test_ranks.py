"""Jobs on several ranks, recorded and replayed with real collectives."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from foretrace.api import benchmark, load, replay_step
from foretrace.graph import ForetraceError
from foretrace.replay.generate.choices import Choices
from foretrace.replay.running import How, Replay
from tests import warm
from tests.narrowing import present

pytestmark = pytest.mark.slow

QUICK = How(iterations=2, pace=False)


def everything_called(replayed: Replay) -> bool:
    assert replayed.failures == [] and replayed.stand_ins == []
    return replayed.coverage["calls"] == 1.0


@pytest.mark.parametrize("name", ["ddp", "fsdp", "hybrid"])
def test_both_ranks_of_a_job_make_every_call(name: str, on_two_ranks: Callable[[str], Path], tmp_path: Path) -> None:
    replayed = replay_step(on_two_ranks(name), how=QUICK, keep=tmp_path / "bench")
    assert everything_called(replayed) and replayed.world == 2 and len(replayed.ranks or []) == 2
    assert {name.partition("::")[0] for name in replayed.ops} >= {"aten", "c10d"}
    assert replayed.original["step_ms"] > 0
    text = (tmp_path / "bench" / "rank-1" / "step.py").read_text()
    assert text.count("wait(w") == text.count(" = c10d."), "each work is waited for once"


def test_a_rank_plays_alone(on_two_ranks: Callable[[str], Path], tmp_path: Path) -> None:
    folder = benchmark(on_two_ranks("hybrid"), tmp_path / "bench")
    said = json.loads(run(folder, "--alone", "1", "--no-pace", "--iterations", "2", "--json").stdout)
    assert said["coverage"]["calls"] == 1.0 and "alone" in said["notes"][-1]


@pytest.mark.usefixtures("warmed")
def test_one_rank_of_two_is_replayed_with_a_pretended_world(on_two_ranks: Callable[[str], Path]) -> None:
    replayed = replay_step(on_two_ranks("fsdp"), Choices(ranks=1), QUICK)
    assert everything_called(replayed) and replayed.world == 1


def test_torchrun_starts_the_ranks_as_well(on_two_ranks: Callable[[str], Path], tmp_path: Path) -> None:
    folder = benchmark(on_two_ranks("hybrid"), tmp_path / "bench")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, str(folder / "run.py"), "--no-pace", "--iterations", "2", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["world"] == 2


@pytest.mark.usefixtures("warmed")
def test_collectives_take_as_long_as_recorded_where_that_is_asked_for(
    on_two_ranks: Callable[[str], Path],
) -> None:
    choices = Choices(ranks=1)
    delayed = replay_step(on_two_ranks("hybrid"), choices, How(iterations=2, pace=False, delayed=True))
    job = load(on_two_ranks("hybrid"))
    exchanges = [c for c in job.graphs[0].collectives if c.kind == "all_to_all"]
    ops = job.graphs[0].ops
    assert present(delayed.step_ms) > sum(float(ops.end[c.op] - ops.start[c.op]) for c in exchanges) / 1e3


def test_more_ranks_than_there_are_can_not_be_had(
    on_two_ranks: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    with pytest.raises(ForetraceError, match="has 2 ranks, not 3"):
        benchmark(on_two_ranks("ddp"), tmp_path / "bench", Choices(ranks=3))


def test_a_wrong_number_of_ranks_is_said(on_two_ranks: Callable[[str], Path], tmp_path: Path) -> None:
    folder = benchmark(on_two_ranks("ddp"), tmp_path / "bench")
    done = run(folder, "--alone", "7")
    assert done.returncode == 2 and "no rank 7" in done.stderr


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return warm.run([sys.executable, str(folder / "run.py"), *options])
