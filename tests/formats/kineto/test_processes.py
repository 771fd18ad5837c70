"""Traces of several ranks that were merged into one file."""

import json
from pathlib import Path
from typing import Any

import pytest

from foretrace.analysis.measure import measure_step
from foretrace.formats.kineto.processes import MERGED
from foretrace.formats.load import load_traces
from foretrace.graph import Job
from tests.traces import Trace, training_step


def two_ranks() -> list[Trace]:
    """The second launches twice as much, a little later."""
    late = training_step()
    late.now += 5.0
    with late.step(4), late.op("aten::mm"):
        late.launch("gemm", us=500.0)
    return [training_step(), late]


def merged(folder: Path, how: str) -> Job:
    events: list[dict[str, Any]] = []
    for rank, trace in enumerate(two_ranks()):
        for event in trace.events:
            device = event["cat"] == "kernel"
            number = rank if device else 100 + rank
            args = dict(event["args"])
            if how == "offset" and "correlation" in args:
                args["correlation"] += 1_000_000 * rank
            pid: Any = {
                "label": f"[TP{rank:02}] {0 if device else 55}",
                "one device": 0 if device else number,
                "same": rank,
            }
            events.append({**event, "args": args, "pid": pid.get(how, number)})
    (folder / "merged.json").write_text(json.dumps({"traceEvents": events}))
    return load_traces(folder / "merged.json")


@pytest.mark.parametrize("how", ["label", "offset", "same"])
def test_each_process_of_a_merged_trace_is_a_rank(tmp_path: Path, how: str):
    job = merged(tmp_path, how)
    alone = [load_traces(trace.write(tmp_path / f"{i}.json")) for i, trace in enumerate(two_ranks())]
    assert [graph.rank for graph in job.graphs] == [0, 1] and job.world == 2
    for graph, one in zip(job.graphs, alone):
        assert graph.kernels.op.tolist() == one.graphs[0].kernels.op.tolist()
        assert measure_step(Job([graph])).device_active_ms == measure_step(one).device_active_ms
    assert any("2 processes" in note for note in job.graphs[0].notes)


def test_processes_that_cannot_be_told_apart_are_said_in_the_headline(tmp_path: Path):
    job = merged(tmp_path, "one device")
    assert job.world == 1
    assert any(note.startswith(MERGED) for note in measure_step(job).cautions)


def test_processes_without_a_device_are_ranks_too(tmp_path: Path):
    events = [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": p, "tid": 1, "ts": p, "dur": 5} for p in (7, 8)]
    (tmp_path / "trace.json").write_text(json.dumps(events))
    assert [len(graph.ops) for graph in load_traces(tmp_path / "trace.json").graphs] == [1, 1]
