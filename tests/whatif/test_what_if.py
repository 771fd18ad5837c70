"""What-ifs: forecasts before and after a change."""

from __future__ import annotations

from typing import Any

import pytest

import dlrm
import foretrace as ft
import gpt
from foretrace.analysis.report import StepReport
from foretrace.api import predict
from foretrace.graph import ForetraceError, Graph, Job, Op, OpTable, Tensor
from foretrace.whatif import what_if as whatifs
from foretrace.whatif.changes import edit_step
from foretrace.whatif.grammar import Change, read_changes
from tests.transforms.agreement import assert_same, sketched


def test_an_edited_step_is_predicted_as_the_step_itself() -> None:
    small, large = (sketched(gpt, batch=size) for size in (4, 64))
    told = ft.what_if(small, batch=64)
    assert told.after.step_ms == pytest.approx(ft.predict(large, on="h200").step_ms, rel=0.01)
    assert told.after.peak_memory_bytes == ft.predict(large, on="h200").peak_memory_bytes
    words = told.to_dict()
    assert words["changes"] == ["batch=64"] and words["difference"]["by_op"]


def test_changes_are_made_one_after_the_other() -> None:
    step = edit_step(sketched(dlrm), ["batch=64", "rows:0=77", "pooling=2"])
    assert_same(step, sketched(dlrm, batch=64, rows=(77, 10_000, 10_000, 10_000), pooling=2))


def test_lookups_are_fused_after_another_change() -> None:
    told = ft.what_if(sketched(dlrm), changes=["batch=64", "fuse=lookups"])
    assert told.after.by_op and told.after.step_ms < told.before.step_ms
    assert sum(row.count for row in told.after.by_op if row.name == "aten::_embedding_bag") == 1


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("batch=0", "batch can't be '0'"),
        ("batch", "is no change"),
        ("bacth=8", "Did you mean batch"),
        ("batch:x=8", "of the whole step"),
        ("dtype=int3", "can't run in"),
        ("optimizer=adamv", "Did you mean .*adamw"),
        ("attention=fast", "There are efficient"),
        ("fuse=all", "These can: lookups, elementwise, optimizer"),
        ("depth=0", "depth can't be '0'"),
        ("batch=1000000000000", "from 1 to 999,999,999"),
        ("dim=64/32", "Write dim=64"),
        ("rows:tables.3=64/32", "Write rows:tables.3=64"),
    ],
)
def test_a_change_that_makes_no_sense_is_refused_before_anything_runs(text: str, why: str) -> None:
    with pytest.raises(ForetraceError, match=why):
        Change.read(text)


def test_a_single_change_need_not_be_in_a_list() -> None:
    assert [str(change) for change in read_changes("batch=64")] == ["batch=64"]
    assert ft.what_if(sketched(dlrm), changes="batch=64").changes == ["batch=64"]


def test_spaces_around_what_is_set_mean_nothing() -> None:
    assert Change.read(" batch = 64 ") == Change("batch", "64")


def test_what_an_edit_did_is_a_sentence_whatever_it_is_of() -> None:
    made = edit_step(sketched(dlrm), ["rows=2000"])
    assert any(note.startswith("rows: 2,000 instead of ") for note in made.notes)


def test_nothing_to_change_is_told() -> None:
    with pytest.raises(ForetraceError, match="nothing is to be changed"):
        ft.what_if(sketched(dlrm))


def test_a_trace_is_held_against_its_own_calls_without_what_a_profile_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    predicted: list[Job] = []

    def spied(job: Job, *args: Any, **kwargs: Any) -> StepReport:
        predicted.append(job)
        return predict(job, *args, **kwargs)

    monkeypatch.setattr(whatifs, "predict", spied)
    x, y = (Tensor((8, 4), "float32", "cuda:0", (4, 1), id=n, storage=n) for n in (0, 1))
    inner = Op("aten::relu", (x,), outputs=(y,), phase="forward", parent=0)
    told = whatifs.what_if(Graph(OpTable.of([Op("aten::linear"), inner])), changes=["batch=8/8"])
    assert [[op.name for op in job.graphs[0].ops] for job in predicted] == [["aten::relu"], ["aten::relu"]]
    assert told.speedup == 1.0


def test_the_recorded_batch_is_believed_where_a_change_says_it() -> None:
    told = ft.what_if(sketched(gpt, batch=4), batch="8/4")
    assert (told.before.samples, told.after.samples) == (4, 8)


def test_progress_is_reported() -> None:
    stages: list[str] = []
    ft.what_if(sketched(dlrm), batch=64, on_progress=lambda progress: stages.append(progress.text))
    assert stages == ["reading", "predicting it as it is", "setting batch=64", "predicting it as it would be"]
