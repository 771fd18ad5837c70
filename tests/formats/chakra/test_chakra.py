"""Chakra traces, written and read back."""

import json
import tarfile
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.json_format import MessageToJson
from hypothesis import given, settings
from hypothesis import strategies as st

from foretrace.analysis.measure import measure_step
from foretrace.formats.chakra import read_chakra, write_chakra
from foretrace.formats.chakra.schema import (
    COLLECTIVES,
    COMM_COLL_NODE,
    COMM_RECV_NODE,
    COMM_SEND_NODE,
    COMP_NODE,
    GlobalMetadata,
    Node,
    add_attributes,
    attributes,
    framed,
    unframed,
)
from foretrace.formats.execution_trace import read_execution_trace
from foretrace.formats.kineto import read_kineto
from foretrace.formats.load import load_traces
from foretrace.graph import Collective, ForetraceError, Graph, Job
from foretrace.graph.tables import CALL, LAUNCH
from tests.formats.execution_traces import step, trace, write
from tests.formats.jobs import job, rank
from tests.traces import Trace


def nodes_of(path: Path) -> list[Any]:
    return [Node.FromString(message) for message in list(unframed(path.read_bytes()))[1:]]


def edges(nodes: list[Any]) -> dict[int, set[int]]:
    return {node.id: {*node.ctrl_deps, *node.data_deps} for node in nodes}


def same_tables(a: Graph, b: Graph) -> None:
    for table in ("ops", "calls", "kernels"):
        mine, theirs = getattr(a, table), getattr(b, table)
        assert [mine.names[code] for code in mine.name] == [theirs.names[code] for code in theirs.name]
        columns = [c for c in vars(mine) if isinstance(getattr(mine, c), np.ndarray) and c not in ("name", "record")]
        for column in columns:
            if column not in ("module", "source") and (table, column) != ("ops", "stream"):  # not in Chakra
                assert getattr(mine, column).tolist() == getattr(theirs, column).tolist(), (table, column)


def test_what_the_host_does_besides_calls_and_the_allocated_memory_are_told_of_the_copy_as_well(tmp_path: Path):
    step = Trace()
    with step.step(1):
        with step.op("enumerate(DataLoader)#_Iter.__next__", "user_annotation"):
            step.now += 5_000
        with step.op("<built-in function collect>", "python_function"):
            step.now += 2_000
        with step.op("aten::mm"):
            step.launch("gemm", us=300)
        step.add(
            "cpu_instant_event", "[memory]", step.now, 0, **{"Device Type": 1, "Device Id": 0, "Total Allocated": 9}
        )
    original = read_kineto(step.write(tmp_path / "trace.json"))
    (path,) = write_chakra(Job([original]), tmp_path / "out")
    copy = read_chakra(path)
    for name in ("name", "start", "end", "thread", "kind"):
        assert getattr(copy.activities, name).tolist() == getattr(original.activities, name).tolist()
    (one, other) = (measure_step(graph) for graph in (original, copy))
    assert [row.cause for row in one.idle[:2]] == ["data loading", "garbage collection"]
    assert (one.idle, one.critical_path, one.overheads, one.notes) == (
        other.idle, other.critical_path, other.overheads, other.notes,
    )  # fmt: skip
    assert copy.allocated == original.allocated


def test_a_job_written_and_read_is_the_same(tmp_path: Path):
    original = job()
    paths = write_chakra(original, tmp_path / "out")
    assert [path.name for path in paths] == ["chakra.0.et", "chakra.1.et"]
    for graph, path in zip(original.graphs, paths):
        back = read_chakra(path)
        same_tables(graph, back)
        assert back.collectives == graph.collectives
        assert (back.rank, back.world, back.device, back.origin_ns) == (graph.rank, 2, "NVIDIA H200", graph.origin_ns)
        assert (back.steps, back.groups, back.notes) == (graph.steps, graph.groups, [])


def test_arguments_come_back_too(tmp_path: Path):
    (path,) = write_chakra(Job([rank(0)]), tmp_path)
    mine, back = rank(0).ops, read_chakra(path).ops
    assert back[1].args == mine[1].args
    assert back[1].overload == "default"
    assert back[2].args == ([64, 64],)
    assert back[2].kwargs == {"pin_memory": False}


def test_edges_never_go_in_a_circle_and_nodes_come_after_what_they_wait_for(tmp_path: Path):
    (path,) = write_chakra(Job([rank(0)]), tmp_path)
    waits = edges(nodes_of(path))
    order = list(TopologicalSorter(waits).static_order())
    assert len(order) == len(waits)
    assert all(dep < number for number, deps in waits.items() for dep in deps)


def test_kernels_wait_for_their_launch_their_stream_and_the_events_of_other_streams(tmp_path: Path):
    (path,) = write_chakra(Job([rank(0)]), tmp_path)
    by_name: dict[str, list[Any]] = {}
    for node in nodes_of(path):
        by_name.setdefault(node.name, []).append(node)
    gemm, nccl, copy = (by_name[name][0] for name in rank(0).kernels.names.items)
    first_launch, second_launch = by_name["cudaLaunchKernel"]
    assert set(gemm.data_deps) == {first_launch.id}
    assert set(nccl.data_deps) == {second_launch.id, gemm.id}
    assert set(copy.data_deps) == {by_name["cudaMemcpyAsync"][0].id, gemm.id}
    assert copy.id in by_name["cudaStreamSynchronize"][0].data_deps


def test_host_time_is_that_outside_of_what_is_called_and_between_ops(tmp_path: Path):
    (path,) = write_chakra(Job([rank(0)]), tmp_path)
    nodes = nodes_of(path)
    mm = next(node for node in nodes if node.name == "aten::mm")
    assert mm.duration_micros == pytest.approx(40.125 - 10.5 - 2 - 5, abs=1)
    assert mm.start_time_micros == 10
    sync = next(node for node in nodes if node.name == "cudaStreamSynchronize")
    assert sync.duration_micros == pytest.approx(480 - 470, abs=1)
    between = [node.duration_micros for node in nodes if node.name == "between ops"]
    assert between == pytest.approx([50 - 40.125, 60 - 55, 100 - 90], abs=1)


def played(nodes: list[Any]) -> float:
    """How long the nodes take, each starting when all it waits for has ended."""
    end: dict[int, int] = {}
    for node in nodes:
        waits = (end[dep] for dep in (*node.ctrl_deps, *node.data_deps) if dep in end)
        end[node.id] = max(waits, default=0) + node.duration_micros
    return max(end.values())


def test_ranks_meet_in_collectives_of_the_same_group_in_the_same_order(tmp_path: Path):
    matches = []
    for path in write_chakra(job(), tmp_path):
        coll = [node for node in nodes_of(path) if node.type == COMM_COLL_NODE]
        found = [attributes(node) for node in coll]
        matches.append([(s["pg_name"], COLLECTIVES[s["comm_type"]], s["comm_size"], s["comm_ranks"]) for s in found])
    assert matches[0] == matches[1] == [("0", "all_reduce", 8192, (0, 1))]


def test_sends_and_receives_name_both_ends(tmp_path: Path):
    graph = rank(1)
    graph.collectives = [
        Collective("send", "0", 64, kernel=1, op=4, ranks=(0, 1)),
        Collective("recv", "0", 64, kernel=0, op=1, ranks=(0, 1)),
    ]
    (path,) = write_chakra(Job([graph]), tmp_path)
    nodes = {node.type: attributes(node) for node in nodes_of(path) if node.type in (COMM_SEND_NODE, COMM_RECV_NODE)}
    assert (nodes[COMM_SEND_NODE]["comm_src"], nodes[COMM_SEND_NODE]["comm_dst"]) == (1, 0)
    assert (nodes[COMM_RECV_NODE]["comm_src"], nodes[COMM_RECV_NODE]["comm_dst"]) == (0, 1)
    assert [c.kind for c in read_chakra(path).collectives] == ["recv", "send"]


def test_a_structure_without_times_comes_back_without_times(tmp_path: Path):
    structure = read_execution_trace(write(tmp_path / "et.json", trace(step())))
    (path,) = write_chakra(Job([structure]), tmp_path)
    back = read_chakra(path)
    assert np.isnan(back.ops.start).all()
    assert [op.name for op in back.ops] == [op.name for op in structure.ops]
    assert [op.tensors for op in back.ops] == [op.tensors for op in structure.ops]
    assert back.collectives == structure.collectives


def test_a_writer_that_fails_leaves_nothing(tmp_path: Path):
    graph = rank(0)
    graph.ops.detail = lambda row: 1 / 0  # type: ignore[assignment,return-value]
    with pytest.raises(ZeroDivisionError):
        write_chakra(Job([graph]), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ForetraceError, match=r"chakra\.0\.et can't be written"):
        write_chakra(Job([rank(0)]), tmp_path / "file")


def file_of(path: Path, *nodes: Any) -> Path:
    path.write_bytes(framed(GlobalMetadata(version="0.0.4")) + b"".join(map(framed, nodes)))
    return path


def test_a_trace_without_start_times_is_simulated(tmp_path: Path):
    op = Node(id=1, name="aten::mm", type=COMP_NODE, duration_micros=10)
    add_attributes(op, is_cpu_op=True)
    kernel = Node(id=2, name="gemm", type=COMP_NODE, duration_micros=50, ctrl_deps=[1], data_deps=[1])
    after = Node(id=3, name="relu", type=COMP_NODE, duration_micros=5, data_deps=[2])
    graph = read_chakra(file_of(tmp_path / "a.et", op, kernel, after))
    assert graph.kernels.start.tolist() == [10.0, 60.0]
    assert graph.kernels.end.tolist() == [60.0, 65.0]
    assert graph.kernels.op.tolist() == [0, -1]
    assert graph.calls.kind.tolist() == [LAUNCH]
    assert graph.ops.kind.tolist() == [CALL]
    assert any("simulated" in note for note in graph.notes)


def test_a_circle_names_a_node_in_it(tmp_path: Path):
    path = file_of(tmp_path / "a.et", Node(id=1, name="a", data_deps=[2]), Node(id=2, name="b", data_deps=[1]))
    with pytest.raises(ForetraceError, match=r"a\.et: node 1 \('a'\) waits for itself, in a circle"):
        read_chakra(path)


def test_a_root_that_is_its_own_parent_is_no_circle(tmp_path: Path):
    root = Node(id=1, name="[pytorch|profiler|execution_trace|process]", ctrl_deps=[1])
    work = Node(id=2, name="a", type=COMP_NODE, duration_micros=5, ctrl_deps=[1])
    assert read_chakra(file_of(tmp_path / "a.et", root, work)).kernels.end.tolist() == [0.0, 5.0]


def test_an_op_that_waits_for_what_it_calls_is_no_circle(tmp_path: Path):
    item = Node(id=1, name="aten::item", type=COMP_NODE, duration_micros=4, data_deps=[3])
    copy = Node(id=2, name="aten::_local_scalar_dense", type=COMP_NODE, duration_micros=2, ctrl_deps=[1])
    kernel = Node(id=3, name="Memcpy DtoH", type=COMP_NODE, duration_micros=7, ctrl_deps=[2], data_deps=[2])
    for node in (item, copy):
        add_attributes(node, is_cpu_op=True)
    graph = read_chakra(file_of(tmp_path / "a.et", item, copy, kernel))
    assert graph.kernels.start.tolist() == [2.0]
    assert graph.ops.end.max() == 13.0


def test_a_node_with_the_id_0_is_not_the_parent_of_all_others(tmp_path: Path):
    first = Node(name="aten::mm", type=COMP_NODE, duration_micros=4)
    second = Node(id=1, name="aten::relu", type=COMP_NODE, duration_micros=2, data_deps=[0])
    for node in (first, second):
        add_attributes(node, is_cpu_op=True)
    graph = read_chakra(file_of(tmp_path / "a.et", first, second))
    assert graph.ops.parent.tolist() == [-1, -1]
    assert graph.ops.end.tolist() == [4.0, 6.0]


HALF = '[{"attr": [{"\\ud800": 1}]}]'
"""JSON with half of a character in it."""


def step_of_three() -> list[Any]:
    """A step mark, an op and the kernel that it launches."""
    mark = Node(id=5, name="ProfilerStep#3", type=COMP_NODE)
    op = Node(id=6, name="aten::mm", type=COMP_NODE, duration_micros=10, ctrl_deps=[5], data_deps=[5])
    kernel = Node(id=7, name="gemm", type=COMP_NODE, duration_micros=50, ctrl_deps=[6], data_deps=[6])
    reduce = Node(id=8, name="nccl", type=COMM_COLL_NODE, duration_micros=9, ctrl_deps=[6], data_deps=[7])
    for node in (mark, op):
        add_attributes(node, is_cpu_op=True)
    add_attributes(reduce, is_cpu_op=False, comm_type=0, comm_size=4096, pg_name="7")
    return [mark, op, kernel, reduce]


def test_protobufs_json_is_read_as_the_binary_file_is(tmp_path: Path):
    binary = read_chakra(file_of(tmp_path / "a.et", *step_of_three()))
    text = MessageToJson(GlobalMetadata(version="0.0.4")) + "".join(map(MessageToJson, step_of_three()))
    as_list = "[" + ",".join(map(MessageToJson, step_of_three())) + "]"
    for written in (text, as_list, as_list.replace("dataDeps", "data_deps")):
        (tmp_path / "a.json").write_text(written)
        graph = load_traces(tmp_path / "a.json").graphs[0]
        same_tables(binary, graph)
        assert graph.collectives == binary.collectives


def test_the_feeders_json_is_read_too(tmp_path: Path):
    graph_of = [
        {"Id": n.id, "Name": n.name, "NodeType": n.type, "runtime": n.duration_micros, "data_deps": list(n.data_deps)}
        | attributes(n)
        for n in step_of_three()
    ]
    (tmp_path / "a.json").write_text(json.dumps({"workload_graph": graph_of}))
    (graph,) = load_traces(tmp_path / "a.json").graphs
    assert graph.kernels.start.tolist() == [10.0, 60.0]
    assert graph.kernels.op.tolist() == [1, -1]
    assert [(c.kind, c.nbytes) for c in graph.collectives] == [("all_reduce", 4096)]
    assert [(step.start, step.end) for step in graph.steps] == [(0.0, 69.0)]


@pytest.mark.parametrize(
    "text", ['{"attr": 3}', '{"attr": []}{"id": "x"}', '{"workload_graph": [3]}', '[{"attr": 1}]', HALF]
)
def test_json_that_is_no_chakra_trace_is_refused(tmp_path: Path, text: str):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ForetraceError, match=r"a\.json"):
        load_traces(tmp_path / "a.json")


@pytest.mark.parametrize("length", [0x5B, 0x7B])
def test_metadata_as_long_as_a_bracket_is_a_number_is_still_a_chakra_file(tmp_path: Path, length: int):
    metadata = GlobalMetadata(version="0.0.4")
    add_attributes(metadata, schema="1.1.0", note="")
    metadata.attr[1].string_val = "x" * (length - len(metadata.SerializeToString()))
    head = framed(metadata)
    assert head[0] == length
    (tmp_path / "a.et").write_bytes(head + b"".join(map(framed, step_of_three())))
    assert len(load_traces(tmp_path / "a.et").graphs[0].kernels) == 2


def test_ranks_without_any_times_are_a_job_without_times(tmp_path: Path):
    for number in range(2):
        reduce = Node(id=number, name="all_reduce", type=COMM_COLL_NODE)
        add_attributes(reduce, is_cpu_op=False, comm_type=0, comm_size=1 << 20)
        file_of(tmp_path / f"all_reduce.{number}.et", reduce)
    job = load_traces(tmp_path)
    assert [graph.rank for graph in job.graphs] == [0, 1]
    assert all(np.isnan(graph.kernels.start).all() for graph in job.graphs)
    assert measure_step(job).step_ms == 0


def test_two_nodes_of_one_id_are_refused(tmp_path: Path):
    path = file_of(tmp_path / "a.et", Node(id=4, name="a"), Node(id=4, name="b"))
    with pytest.raises(ForetraceError, match="two nodes have the id 4"):
        read_chakra(path)


def test_a_file_without_nodes_is_refused(tmp_path: Path):
    with pytest.raises(ForetraceError, match="holds no nodes"):
        read_chakra(file_of(tmp_path / "a.et"))


def test_a_cut_file_says_at_which_node(tmp_path: Path):
    path = file_of(tmp_path / "a.et", Node(id=1, name="a"), Node(id=2, name="b"))
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(ForetraceError, match=r"a\.et: node number 2 can't be read \(cut short\)"):
        read_chakra(path)


@settings(max_examples=150)
@given(st.integers(0, 100_000), st.binary(min_size=1, max_size=6))
def test_bytes_changed_anywhere_give_a_graph_or_one_line(tmp_path: Path, at: int, patch: bytes):
    (tmp_path / "chakra.0.et").unlink(missing_ok=True)  # of the case before
    (path,) = write_chakra(Job([rank(0)]), tmp_path)
    text = path.read_bytes()
    at %= len(text)
    path.write_bytes(text[:at] + patch + text[at + len(patch) :])
    try:
        list(read_chakra(path).ops)
    except ForetraceError as error:
        assert "chakra.0.et" in str(error)


def test_the_trace_that_mlcommons_tools_made_is_read(shared: Path):
    graph = read_chakra(shared / "public/megatron_tp2_2xV100/rank0.chakra.et.gz")
    timed = read_kineto(shared / "public/megatron_tp2_2xV100/rank0.kineto.json.gz")
    assert len(graph.ops) == 1881
    assert len(graph.kernels) == len(timed.kernels)
    structure = read_execution_trace(shared / "public/megatron_tp2_2xV100/rank0.et.json.gz")
    both = [[(c.kind, c.group, c.nbytes) for c in g.collectives] for g in (graph, structure)]
    assert both[0] == both[1]
    assert graph.groups["13"] == (0, 1)
    assert graph.kernels.op.min() >= 0
    assert graph.ops[300].tensors[0].shape == (8, 64)


def test_mlcommons_feeder_trace_is_read(shared: Path, tmp_path: Path):
    with tarfile.open(shared / "public/wild/chakra_feeder.tar.gz") as tar:
        tar.extractall(tmp_path, filter="data")
    job = load_traces(tmp_path / "tests/data/chakra.0.et")
    assert measure_step(job).step_ms == pytest.approx(181, rel=0.01)


@pytest.mark.parametrize("name", ["traces/h200/dlrm_mlperf_b2048", "public/megatron_tp8_8xA100/rank0."])
def test_a_real_trace_comes_back_and_plays_as_long_as_it_was_measured(shared: Path, tmp_path: Path, name: str):
    graph = read_kineto(shared / (f"{name}kineto.json.gz" if name.endswith(".") else f"{name}/kineto.json.gz"))
    (path,) = write_chakra(Job([graph]), tmp_path)
    same_tables(graph, read_chakra(path))
    nodes = nodes_of(path)
    assert len(list(TopologicalSorter(edges(nodes)).static_order())) == len(nodes)
    (measured,) = graph.steps
    assert played(nodes) == pytest.approx(measured.end - measured.start, rel=0.02)
