"""Reading the events of a profiler trace: in chunks, from odd producers, from broken files."""

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretrace.formats import workers
from foretrace.formats.kineto import events as kineto_events
from foretrace.formats.kineto import read_kineto
from foretrace.graph import ForetraceError, Graph
from tests.traces import Trace, training_step


def read(trace: Trace | bytes, folder: Path) -> Graph:
    path = folder / "trace.json"
    path.write_bytes(trace.text() if isinstance(trace, Trace) else trace)
    return read_kineto(path)


def complaint(content: bytes, folder: Path) -> str:
    with pytest.raises(ForetraceError) as caught:
        read(content, folder)
    assert str(folder / "trace.json") in str(caught.value)
    return str(caught.value)


def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a small file be read like a large one."""
    monkeypatch.setattr(kineto_events, "CHUNK", 5000)
    monkeypatch.setattr("foretrace.files.FIRST_CHUNK_BYTES", 700)
    monkeypatch.setattr("foretrace.files.CHUNK_BYTES", 700)


def same(one: Graph, other: Graph) -> bool:
    assert np.array_equal(one.ops.start, other.ops.start)
    assert np.array_equal(one.kernels.op, other.kernels.op)
    assert one.collectives == other.collectives
    assert [op.tensors for op in one.ops] == [op.tensors for op in other.ops]
    return [one.ops.names[code] for code in one.ops.name] == [other.ops.names[code] for code in other.ops.name]


@pytest.mark.parametrize("field", ["ts", "dur"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -5.0, "soon", None])
def test_an_event_without_a_time_is_named(tmp_path: Path, field: str, value: object) -> None:
    trace = training_step()
    trace.events[1][field] = value
    assert repr(trace.events[1]["name"]) in complaint(trace.text(), tmp_path)


def test_nan_where_it_does_not_matter_is_no_harm(tmp_path: Path) -> None:
    trace = training_step()
    trace.events[1]["args"]["blocks per SM"] = math.nan
    assert len(read(trace, tmp_path).kernels) == 3


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"aten::linear"', b'"aten::\x01linear"'),
        (b'"aten::linear"', b'"aten::\xff\xfelinear"'),
        (b'"External id": 1}', b'"External id": 123456789012345678901234567890}'),
        (b'"External id": 1}', b'"External id": "one"}'),
        (b'"pid": 1,', b'"pid": 1.5,'),
        (b'"grid": [4, 1, 1]', b'"grid": [4, 1, 1, 1, 1]'),
        (b'"grid": [4, 1, 1]', b'"grid": "4x1x1"'),
    ],
)  # fmt: skip
def test_odd_but_harmless_producers_are_read(tmp_path: Path, old: bytes, new: bytes) -> None:
    text = training_step().text()
    assert old in text
    graph = read(text.replace(old, new), tmp_path)
    assert len(graph.kernels) == 3
    assert (graph.kernels.op >= 0).all()


def test_cut_json_says_at_which_byte(tmp_path: Path) -> None:
    text = training_step().text()
    assert "ends in the middle of an event (byte 2,000)" in complaint(text[:2000], tmp_path)


def test_broken_json_says_at_which_byte(tmp_path: Path) -> None:
    text = training_step().text().replace(b'"cat"', b"cat", 1)
    assert f"byte {text.index(b'cat'):,}" in complaint(text, tmp_path)


@pytest.mark.parametrize("text", [b'{"traceEvents": []}', b"[]"])
def test_a_trace_without_events_says_so(tmp_path: Path, text: bytes) -> None:
    assert "holds no events" in complaint(text, tmp_path)


def test_a_trace_of_another_tool_says_so(tmp_path: Path) -> None:
    chrome = [{"ph": "X", "cat": "blink", "name": "layout", "pid": 1, "tid": 1, "ts": 1, "dur": 1}]
    assert "no ops, annotations, runtime calls or device work" in complaint(json.dumps(chrome).encode(), tmp_path)
    assert "no PyTorch profiler trace" in complaint(b'{"nodes": 3}', tmp_path)
    assert "no PyTorch profiler trace" in complaint(b'{"traceEvents": 3}', tmp_path)


def test_names_are_only_text(tmp_path: Path) -> None:
    trace = Trace()
    for name in ("<script>alert(1)</script>", "../../etc/passwd", "", "\u202e", "x" * 100_000):
        with trace.op(name):
            pass
    assert len(read(trace, tmp_path).ops) == 5


@pytest.mark.parametrize("first_key", ["ph", "cat", "args"])
@pytest.mark.parametrize("options", [{}, {"indent": 2}, {"separators": (",", ":")}])
def test_a_trace_read_in_chunks_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first_key: str, options: dict[str, object]
) -> None:
    trace = training_step(rank=0, world=2)
    trace.events = [{first_key: event[first_key], **event} for event in trace.events * 40]
    whole = read(trace.text(**options), tmp_path)
    small_chunks(monkeypatch)
    monkeypatch.setattr(kineto_events, "_all_at_once", lambda path: pytest.fail("was not read in chunks"))
    assert same(read_kineto(tmp_path / "trace.json"), whole)


def test_chunks_decoded_by_other_processes_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = training_step(rank=0, world=2)
    trace.events *= 40
    whole = read(trace, tmp_path)
    small_chunks(monkeypatch)
    monkeypatch.setattr(kineto_events, "SERIAL_CHUNKS", 1)
    monkeypatch.setattr(workers, "usable_cores", lambda: 2)
    assert same(read_kineto(tmp_path / "trace.json"), whole)


def test_a_process_that_dies_costs_nothing_but_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = training_step()
    trace.events *= 40
    whole = read(trace, tmp_path)
    small_chunks(monkeypatch)
    monkeypatch.setattr(kineto_events, "SERIAL_CHUNKS", 1)
    monkeypatch.setattr(workers, "usable_cores", lambda: 2)
    monkeypatch.setattr(workers, "_serve", lambda *_: os._exit(1))
    assert same(read_kineto(tmp_path / "trace.json"), whole)


def test_a_broken_event_is_named_whoever_decodes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = training_step()
    trace.events = [dict(event) for event in trace.events * 40]
    trace.events[200]["dur"] = -1
    small_chunks(monkeypatch)
    monkeypatch.setattr(kineto_events, "SERIAL_CHUNKS", 1)
    monkeypatch.setattr(workers, "usable_cores", lambda: 2)
    assert repr(trace.events[200]["name"]) in complaint(trace.text(), tmp_path)


def test_whole_nanoseconds_survive_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = Trace()
    for i in range(100):
        trace.add("cpu_op", "aten::relu", 1_790_857_026_000_000_000 + 1001 * i, 7)
    trace.add("kernel", "relu", 1_790_857_026_000_000_003, 5, 7, 0, correlation=1)
    small_chunks(monkeypatch)
    graph = read(trace, tmp_path)
    assert np.allclose(np.diff(graph.ops.start), 1.001, atol=1e-9)
    assert graph.kernels.start.tolist() == [0.003]


def test_a_chunk_cut_at_what_only_looks_like_an_event_is_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = training_step()
    for event in trace.events:
        event["args"]["inner"] = [{"ph": "X", "name": str(i)} for i in range(50)]
    small_chunks(monkeypatch)
    assert len(read(trace, tmp_path).kernels) == 3


SMALL = training_step(rank=0, world=2).text()


@settings(max_examples=300)
@given(
    st.lists(st.tuples(st.integers(0, len(SMALL) - 1), st.binary(max_size=4)), max_size=4), st.integers(0, len(SMALL))
)
def test_damaged_bytes_give_a_graph_or_one_clear_error(
    tmp_path: Path, damage: list[tuple[int, bytes]], length: int
) -> None:
    text = bytearray(SMALL)
    for at, new in damage:
        text[at : at + max(1, len(new))] = new
    for content in (bytes(text), bytes(text[:length])):
        try:
            graph = read(content, tmp_path)
        except ForetraceError as error:
            assert "trace.json" in str(error)
            assert "\n" not in str(error)
        else:
            assert all(-1 <= op.parent < len(graph.ops) for op in graph.ops)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = [
    "ph", "cat", "name", "pid", "tid", "args", "External id", "correlation", "stream", "device", "bytes", "grid",
    "block", "Input Dims", "Input type", "Input Strides", "Concrete Inputs", "Collective name", "In msg nelems",
    "dtype", "Process Group Ranks", "Group size", "Record function id",
]  # fmt: skip


@settings(max_examples=300)
@given(st.integers(0, 20), st.sampled_from(FIELDS), JUNK)
def test_any_value_in_any_field_is_read_or_refused(tmp_path: Path, at: int, field: str, junk: object) -> None:
    trace = training_step(rank=0, world=2)
    event = trace.events[at % len(trace.events)]
    (event if field in event else event["args"])[field] = junk
    graph = read(trace, tmp_path)
    assert len(list(graph.ops)) + len(graph.calls) + len(graph.kernels) >= len(trace.events) - 1


@settings(max_examples=100)
@given(st.sampled_from(["distributedInfo", "deviceProperties", "baseTimeNanoseconds", "schemaVersion"]), JUNK)
def test_any_value_in_the_head_is_no_harm(tmp_path: Path, field: str, junk: object) -> None:
    trace = training_step()
    trace.head[field] = junk
    assert len(read(trace, tmp_path).kernels) == 3
