"""Calls that reach no dispatcher are noted among the ops, and work as before."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import foretrace as ft
from foretrace.graph import Constant, Graph, OpTable, Tf32
from foretrace.record.sketch.process_group import pretended_group
from foretrace.record.watch.context import _targets, settings
from foretrace.record.watch.watch import Watch
from tests import warm
from tests.narrowing import instance


def test_a_resized_storage_is_noted_with_old_and_new() -> None:
    kept = torch.zeros(4)
    with Watch() as watch:
        kept.add_(1)
        kept.untyped_storage().resize_(0)
        kept.untyped_storage().resize_(16)
        kept.fill_(2)
    added, freed, grown, filled = watch.ops
    assert [op.name for op in (freed, grown)] == ["storage::resize_"] * 2
    assert freed.args[0] == added.tensors[0].storage
    assert freed.args[1] == grown.args[0] and grown.args[1] == filled.tensors[0].storage
    assert (freed.args[2], grown.args[2]) == (0, 16)
    assert kept.tolist() == [2, 2, 2, 2]


def test_waiting_for_a_collective_is_noted_with_its_work() -> None:
    with pretended_group(world=2, rank=0), Watch() as watch:
        first, second = (dist.all_reduce(torch.ones(4), async_op=True) for _ in range(2))
        second.wait()
        first.wait(timeout=timedelta(0))
    issued = [op.outputs[-1] for op in watch.ops if op.name == "c10d::allreduce_"]
    waited = [op.args[0] for op in watch.ops if op.name == "c10d::wait"]
    assert issued == [Constant("work", "0"), Constant("work", "1")]
    assert waited == [Constant("work", "1"), Constant("work", "0")]


def test_a_work_from_before_the_step_is_not_one_of_its_waits() -> None:
    with pretended_group(world=2, rank=0):
        earlier = dist.all_reduce(torch.ones(4), async_op=True)
        with Watch() as watch:
            earlier.wait()
    assert [op.name for op in watch.ops] == []


class Event:
    """Stands for a CUDA event, of which a build without CUDA has none that work."""

    def record(self, stream: Any = None) -> str:
        return "recorded"

    def wait(self, stream: Any = None) -> str:
        return "waited"

    def synchronize(self) -> str:
        return "synchronized"


class Stream:
    def __init__(self, handle: int) -> None:
        self.cuda_stream = handle

    def synchronize(self) -> None: ...


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: Stream(0))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: "all synchronized")


def test_events_and_streams_are_noted_by_small_numbers(cuda: None) -> None:
    one, other, side = Event(), Event(), Stream(0xBEEF)
    with Watch() as watch:
        answers = [one.record(), other.record(stream=side), one.wait(side), other.wait(), one.synchronize()]
        side.synchronize()
        answers.append(torch.cuda.synchronize(device=0))
    assert answers == ["recorded", "recorded", "waited", "waited", "synchronized", "all synchronized"]
    constants = [(op.name, [instance(Constant, value) for value in op.args]) for op in watch.ops]
    reported = [(name.removeprefix("cuda::"), [f"{c.kind} {c.value}" for c in args]) for name, args in constants]
    assert reported == [
        ("event_record", ["event 0", "stream 0"]),
        ("event_record", ["event 1", "stream 1"]),
        ("stream_wait_event", ["stream 1", "event 0"]),
        ("stream_wait_event", ["stream 0", "event 1"]),
        ("event_synchronize", ["event 0"]),
        ("stream_synchronize", ["stream 1"]),
        ("device_synchronize", []),
    ]


def test_everything_is_put_back(cuda: None) -> None:
    targets = [(owner, attribute) for owner, attribute, _, _ in _targets(Watch())]
    before = [vars(owner).get(attribute) for owner, attribute in targets]
    with Watch():
        assert [vars(owner).get(attribute) for owner, attribute in targets] != before
    assert [vars(owner).get(attribute) for owner, attribute in targets] == before


def test_after_a_watched_step_works_can_be_waited_for() -> None:
    """What a class of C++ has must be put back as it was, or it loses its self."""
    with pretended_group(world=2, rank=0):
        with Watch():
            dist.all_reduce(torch.ones(4))
        work = dist.all_reduce(torch.ones(4), op=dist.ReduceOp.MAX, async_op=True)
        assert work.wait()


def test_outside_a_watched_step_nothing_is_noted() -> None:
    with Watch() as watch:
        pass
    torch.zeros(4).untyped_storage().resize_(0)
    assert watch.ops == []


def test_a_failure_to_note_does_not_end_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch()
    storage = torch.zeros(4).untyped_storage()
    monkeypatch.setattr(watch.registry, "resized", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError), watch:
        storage.resize_(0)
        assert storage.nbytes() == 0, "the step itself goes on"


def closing(kind: Any, keyword: bool) -> Callable[[], Any]:
    """A step that is a closure of its optimizer, as Lightning calls it, and as LBFGS needs it."""
    layer, given = torch.nn.Linear(4, 4), torch.ones(2, 4)
    optimizer = kind(layer.parameters())

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = layer(given).square().mean()
        loss.backward()
        return loss

    return lambda: optimizer.step(closure=closure) if keyword else optimizer.step(closure)


@pytest.mark.parametrize("keyword", [False, True])
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.LBFGS])
@pytest.mark.parametrize("sketched", [False, True])
def test_what_runs_in_a_closure_has_the_phase_that_it_would_have_outside(
    kind: Any, keyword: bool, sketched: bool
) -> None:
    step = closing(kind, keyword)
    if sketched:
        ops = list(ft.sketch(step).ops)
    else:
        with Watch() as watch:
            step()
        ops = watch.ops
    phases = {name: {op.phase for op in ops if op.name == f"aten::{name}"} for name in ("addmm", "mean", "mm")}
    assert phases["addmm"] == phases["mean"] == {"forward"} and phases["mm"] == {"backward"}
    assert "optimizer" in {op.phase for op in ops}


NEW_WORDS = hasattr(torch.backends.cuda.matmul, "fp32_precision")


SCRIPT = """
import json, warnings
import torch
from foretrace.record.watch.context import settings
warnings.simplefilter("error")
matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
{line}
print(json.dumps(settings()))
"""


def _tf32_after(line: str, folder: Path) -> Tf32:
    """As a process of its own has it: what is set in the newer words can't be taken back in the older ones."""
    script = folder / "script.py"
    script.write_text(SCRIPT.format(line=line))
    done = warm.run([sys.executable, str(script)])
    assert done.returncode == 0, done.stderr
    return Graph(OpTable.of([]), settings=json.loads(done.stdout)).tf32


def test_left_alone_only_convolutions_may_use_tf32() -> None:
    assert Graph(OpTable.of([]), settings=settings()).tf32 == Graph(OpTable.of([])).tf32 == Tf32(False, True)


@pytest.mark.parametrize(
    "line", ["matmul.allow_tf32 = True", "torch.set_float32_matmul_precision('high')"] + (
        ["matmul.fp32_precision = 'tf32'", "torch.backends.fp32_precision = 'tf32'"] if NEW_WORDS else []
    )
)  # fmt: skip
def test_products_that_may_use_tf32_are_noted(line: str, tmp_path: Path) -> None:
    assert _tf32_after(line, tmp_path) == Tf32(True, True)


@pytest.mark.parametrize("line", ["cudnn.allow_tf32 = False"] + ["cudnn.conv.fp32_precision = 'ieee'"] * NEW_WORDS)
def test_convolutions_that_must_not_are_noted(line: str, tmp_path: Path) -> None:
    assert _tf32_after(line, tmp_path) == Tf32(False, False)


def test_a_sketch_carries_them() -> None:
    graph = ft.sketch(lambda: torch.ones(2, 2) @ torch.ones(2, 2))
    assert graph.settings["matmul_precision"] == "highest"
