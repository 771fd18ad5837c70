"""The README of a benchmark."""

from __future__ import annotations

from foretrace.replay.about import about
from foretrace.replay.plan import Call, Plan


def test_it_says_what_it_was_made_from_and_what_is_missing() -> None:
    text = about(Plan([], [], [Call(0, "aten::mm")], notes=["rows of <b>"]), 3, "runs/dlrm")
    assert "from runs/dlrm: 1 calls of the step in their order" in text and "3 calls can't be made" in text
    assert "- rows of ?b?" in text and "## Ranks" not in text and "`step.py`" in text


def test_of_several_ranks_it_says_whose_figures_they_are() -> None:
    text = about(Plan([], [], [], rank=0), 0, "", ranks=8)
    assert "on rank 0 of 8. No model code" in text and "torchrun --nproc-per-node 8 run.py" in text
    assert "`rank-N/step.py`" in text and " from " not in text.splitlines()[2]
