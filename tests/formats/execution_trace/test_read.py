"""Reading execution traces: arguments, storages, collectives, and what is read again in another process."""

from __future__ import annotations

import copy
import json
import pickle
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretrace.formats.chakra import read_chakra, write_chakra
from foretrace.formats.execution_trace import read_execution_trace
from foretrace.formats.execution_trace.read import LazyOps
from foretrace.formats.join import join_traces
from foretrace.graph import Constant, ForetraceError, Graph, Job
from foretrace.graph.tables import ANNOTATION, CALL, NODE
from foretrace.graph.temporaries import RULES
from tests.formats.execution_traces import node, scaffold, step, tensor, trace, write

SCHEMAS = ("1.0.1", "1.0.2-chakra.0.0.4", "1.0.3-chakra.0.0.4", "1.0.4", "1.1.0-chakra.0.0.4", "1.1.1-chakra.0.0.4")

NAMES = [
    "## process_group:init ##", "ProfilerStep#3", "aten::linear", "aten::addmm",
    "autograd::engine::evaluate_function: AddmmBackward0", "AddmmBackward0", "aten::empty", "triton_poi_fused_0",
    "c10d::allreduce_", "record_param_comms", "Optimizer.step#SGD.step", "aten::_foreach_add_",
]  # fmt: skip


def read(folder: Path, nodes: list[dict[str, Any]], schema: str = "1.0.1") -> Graph:
    return read_execution_trace(write(folder / "et.json.gz", trace(nodes, schema)))


def row(graph: Graph, name: str) -> int:
    return next(i for i, op in enumerate(graph.ops) if op.name == name)


@pytest.mark.parametrize("schema", SCHEMAS)
def test_every_schema_gives_the_same_ops_in_call_order(tmp_path: Path, schema: str):
    graph = read(tmp_path, step(), schema)
    ops = list(graph.ops)
    assert [op.name for op in ops] == NAMES
    assert [op.parent for op in ops] == [-1, -1, 1, 2, -1, 4, 5, 5, 1, 8, 1, 10]
    assert [op.thread for op in ops] == [1, 1, 1, 1, 2, 2, 2, 2, 1, 1, 1, 1]
    assert graph.ops.record is not None
    assert graph.ops.record[3] == 6


def test_calls_nodes_and_annotations_are_distinguished(tmp_path: Path):
    kinds = read(tmp_path, step()).ops.kind.tolist()
    expected = {CALL: 7, NODE: 2, ANNOTATION: 3}
    assert {kind: kinds.count(kind) for kind in expected} == expected


def test_phases_follow_autograd_and_the_optimizer(tmp_path: Path):
    phases = {op.name: op.phase for op in read(tmp_path, step()).ops}
    assert phases["aten::addmm"] == phases["record_param_comms"] == "forward"
    assert phases["aten::empty"] == phases["triton_poi_fused_0"] == "backward"
    assert phases["aten::_foreach_add_"] == "optimizer"


def test_arguments_after_the_star_go_by_keyword(tmp_path: Path):
    graph = read(tmp_path, step())
    addmm = graph.ops[row(graph, "aten::addmm")]
    assert len(addmm.args) == 3
    assert addmm.kwargs == {"beta": 1, "alpha": 0.5}
    empty = graph.ops[row(graph, "aten::empty")]
    assert empty.args == ([4, 8],)
    assert empty.overload == "memory_format"
    assert empty.kwargs["dtype"] == Constant("dtype", "bfloat16")
    assert empty.kwargs["device"] == Constant("device", "cuda:0")
    assert empty.kwargs["layout"] is None


def test_tensors_have_shape_dtype_place_and_strides_where_the_schema_has_them(tmp_path: Path):
    old = read(tmp_path, step(), "1.1.0").ops[3].tensors[1]
    new = read(tmp_path, step(), "1.1.1").ops[3].tensors[1]
    assert (old.shape, old.dtype, old.device, old.id, old.stride) == ((4, 4), "float32", "cuda:0", 22, None)
    assert new.stride == (1, 1)


def test_infinite_and_undefined_values_stay_as_they_are(tmp_path: Path):
    nodes = [
        node(
            3, "aten::masked_fill", 1, inputs=["-inf", "nan", [4, 0, 0, 0, 0, ""], "<Generator>"],
            input_shapes=[[], [], [], []],
            input_types=["Double", "Double", "Tensor(nullptr (uninitialized))", "Generator"],
        ),
        scaffold(1, "process", 1),
    ]  # fmt: skip
    assert read(tmp_path, nodes).ops[0].args == (
        Constant("float", "-inf"),
        Constant("float", "nan"),
        None,
        Constant("object", "Generator"),
    )


def test_a_compiled_kernel_is_an_op_with_its_file(tmp_path: Path):
    nodes = step()
    kernel = next(n for n in nodes if n["name"].startswith("triton"))
    kernel["more"] = {"kernel_backend": "triton", "kernel_file": "/tmp/k.py"}
    graph = read(tmp_path, nodes, "1.1.1")
    op = graph.ops[row(graph, "triton_poi_fused_0")]
    assert op.kwargs == {"kernel_backend": "triton", "kernel_file": "/tmp/k.py"}
    assert op.node == "AddmmBackward0"


def test_a_storage_id_used_again_is_another_storage(tmp_path: Path):
    graph = read(tmp_path, step())
    x = graph.ops[row(graph, "aten::addmm")].tensors[1]
    grad = graph.ops[row(graph, "aten::empty")].produced[0]
    assert x.storage != grad.storage
    born = graph.storages[grad.storage]
    assert (born.birth, born.nbytes) == (row(graph, "aten::empty"), 128)
    assert graph.storages[x.storage].birth == -1
    assert all(s.death == -1 for s in graph.storages.values() if s.birth < 0)
    assert any("freed" in note for note in graph.notes)


def test_a_storage_made_inside_an_op_is_born_there_though_its_children_see_it_first(tmp_path: Path):
    made = tensor(9, 40, 256)
    seen = {"input_shapes": [[256]], "input_types": ["Tensor(float)"]}
    nodes = [
        node(4, "aten::zero_", 3, inputs=[made], op_schema="aten::zero_(Tensor(a!) self) -> Tensor(a!)", **seen),
        node(3, "aten::nll_loss_backward", 1, outputs=[made], op_schema="aten::nll_loss_backward() -> Tensor"),
        scaffold(1, "process", 1),
    ]
    (storage,) = read(tmp_path, nodes).storages.values()
    assert (storage.birth, storage.death, storage.nbytes) == (0, 2, 1024)


def test_collectives_have_their_group_members_and_bytes(tmp_path: Path):
    graph = read(tmp_path, step())
    (collective,) = graph.collectives
    assert (collective.kind, collective.group, collective.ranks) == ("all_reduce", "7", (1, 3))
    assert (collective.nbytes, collective.dtype, collective.kernel) == (128, "float32", -1)
    assert collective.op == row(graph, "record_param_comms")
    assert (graph.world, graph.groups["0"]) == (4, (0, 1, 2, 3))


def test_gathered_bytes_are_those_of_the_larger_side(tmp_path: Path):
    nodes = [
        node(
            3, "record_param_comms", 1, inputs=[tensor(5, 6, 8), 1, 94594108284448, 0, "_allgather_base", [], [], 4],
            outputs=[tensor(7, 8, 32)],
        ),
        node(4, "record_param_comms", 1, inputs=[1, 94594108284448, 0, "wait", [], [], 4]),
        scaffold(1, "process", 1),
    ]  # fmt: skip
    (collective,) = read(tmp_path, nodes).collectives
    assert (collective.kind, collective.nbytes, collective.group) == ("all_gather", 128, "group 0")


def test_a_group_list_that_pytorch_cut_gives_the_groups_that_are_whole(tmp_path: Path):
    cut = '[{"pg_name": "0", "ranks": [], "group_size": 2}, {"pg_name": "1", "ran'
    nodes = [node(3, "## process_group:init ##", 1, scope=7, inputs=[cut]), scaffold(1, "process", 1)]
    assert read(tmp_path, nodes).groups == {"0": (0, 1)}


def broken(folder: Path, nodes: list[dict[str, Any]], schema: str = "1.0.1") -> str:
    with pytest.raises(ForetraceError) as caught:
        for _ in read(folder, nodes, schema).ops:
            pass
    assert "et.json.gz" in str(caught.value)
    return str(caught.value)


def test_a_duplicate_id_names_the_node(tmp_path: Path):
    nodes = [*step(), node(6, "aten::mm", 2)]
    assert "node 6" in broken(tmp_path, nodes)


def test_calls_in_one_that_the_trace_ended_inside_of_stand_at_the_top_and_are_counted(tmp_path: Path):
    """The annotation of an optimizer's step, say: nodes are written as calls end."""
    nodes = [node(6, "aten::t", 2), node(9, "aten::mm", 5), node(10, "aten::t", 9), node(2, "own", 1)]
    graph = read(tmp_path, [*nodes, scaffold(1, "process", 1)])
    assert [(op.name, graph.ops.parent[i]) for i, op in enumerate(graph.ops)] == [
        ("own", -1), ("aten::t", 0), ("aten::mm", -1), ("aten::t", 2),
    ]  # fmt: skip
    assert "1 of its calls name a caller that was never written, since the trace ended inside of it" in graph.notes
    assert not any("never written" in note for note in read(tmp_path, step()).notes)


def test_a_parent_that_was_never_written_and_comes_later_is_refused(tmp_path: Path):
    message = broken(tmp_path, [node(9, "aten::mm", 11), scaffold(1, "process", 1)])
    assert "node 9 ('aten::mm')" in message
    assert "node 11" in message


def test_parents_in_a_circle_are_refused(tmp_path: Path):
    assert "node 3" in broken(tmp_path, [node(3, "a", 4), node(4, "b", 3)])


@pytest.mark.parametrize("schema", ["1.0.1", "1.1.1"])
def test_a_node_of_the_wrong_type_is_named(tmp_path: Path, schema: str):
    nodes = step()
    nodes[2]["tid"] = "one"
    message = broken(tmp_path, nodes, schema)
    assert ("entry 2" if schema == "1.0.1" else "node 6") in message


def test_a_tensor_with_words_for_numbers_is_refused(tmp_path: Path):
    assert "node 3" in broken(
        tmp_path, [node(3, "a", 1, inputs=[[1, [], "x", "y", 4, "cpu"]]), scaffold(1, "process", 1)]
    )


def test_lists_of_different_lengths_are_refused(tmp_path: Path):
    nodes = step()
    nodes[2]["input_types"] = ["Int"]
    assert "node 6" in broken(tmp_path, nodes)


@pytest.mark.parametrize("schema", ["1.0.0", "2.0.0-chakra.1", ""])
def test_another_schema_is_refused_by_name(tmp_path: Path, schema: str):
    path = write(tmp_path / "et.json", {"schema": schema, "nodes": []})
    with pytest.raises(ForetraceError, match=r"et\.json is an execution trace of schema"):
        read_execution_trace(path)


@pytest.mark.parametrize("content", [{"traceEvents": []}, {"nodes": []}, {"schema": "1.0.1"}, [], {"schema": 3}])
def test_other_json_is_no_execution_trace(tmp_path: Path, content: Any):
    with pytest.raises(ForetraceError, match=r"et\.json is JSON, but no PyTorch execution trace"):
        read_execution_trace(write(tmp_path / "et.json", content))


def test_a_trace_without_nodes_is_refused(tmp_path: Path):
    with pytest.raises(ForetraceError, match="holds no calls"):
        read_execution_trace(write(tmp_path / "et.json", trace([])))


def test_a_cut_file_says_where_it_ends(tmp_path: Path):
    path = tmp_path / "et.json"
    path.write_bytes(json.dumps(trace(step())).encode()[:2000])
    with pytest.raises(ForetraceError, match=r"et\.json ends in the middle of a node \(byte 2,000\)"):
        read_execution_trace(path)


junk = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False), st.text(max_size=4),
    st.lists(st.integers(-3, 40), max_size=7), st.just([1, 2, 0, 8, 4, "cpu"]), st.just([["a"], {}]), st.just({}),
)  # fmt: skip


@settings(max_examples=150)
@given(st.data())
def test_a_damaged_trace_gives_a_graph_or_one_line(tmp_path: Path, data: st.DataObject):
    content: Any = copy.deepcopy(trace(step(), data.draw(st.sampled_from(SCHEMAS))))
    for _ in range(data.draw(st.integers(1, 3))):
        place = content
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = data.draw(st.sampled_from(keys))
            if isinstance(place[key], (dict, list)) and place[key] and data.draw(st.integers(0, 3)):
                place = place[key]
                continue
            if data.draw(st.booleans()):
                place[key] = copy.deepcopy(data.draw(junk))
            else:
                del place[key]
            break
    path = write(tmp_path / "et.json", content)
    try:
        for op in read_execution_trace(path).ops:
            assert op.name is not None
    except ForetraceError as error:
        assert "et.json" in str(error)


@settings(max_examples=100)
@given(st.integers(0, 10_000), st.binary(max_size=6))
def test_bytes_changed_anywhere_give_a_graph_or_one_line(tmp_path: Path, at: int, patch: bytes):
    text = json.dumps(trace(step(), "1.1.1")).encode()
    at %= len(text)
    (tmp_path / "et.json").write_bytes(text[:at] + patch + text[at + len(patch) :])
    try:
        list(read_execution_trace(tmp_path / "et.json").ops)
    except ForetraceError as error:
        assert "et.json" in str(error)


def test_the_public_sets_have_the_collectives_they_are_known_for(shared: Path):
    dlrm = read_execution_trace(shared / "public/dlrm_8xV100/rank0.et.json.gz")
    assert sorted(c.kind for c in dlrm.collectives) == ["all_reduce"] * 3 + ["all_to_all"] * 5
    megatron = read_execution_trace(shared / "public/megatron_tp8_8xA100/rank3.et.json.gz")
    assert sum(c.kind == "all_reduce" and c.nbytes == 64 << 20 for c in megatron.collectives) == 81
    assert megatron.world == 8


def test_weights_and_optimizer_state_of_bert_are_there_before_the_step(shared: Path):
    graph = read_execution_trace(shared / "traces/h200/bert_base_b64_s512_bf16/et.json.gz")
    before = sum(s.nbytes for s in graph.storages.values() if s.birth < 0 and s.device.startswith("cuda"))
    parameters = 109_514_298
    assert before == pytest.approx(3 * 4 * parameters, rel=0.01)


def test_eight_large_traces_are_read_in_well_under_a_second(shared: Path):
    paths = sorted((shared / "public/megatron_tp8_8xA100").glob("rank*.et.json.gz"))
    began = time.process_time()
    assert [len(read_execution_trace(path).ops) for path in paths] == [5422] * 8
    assert time.process_time() - began < 1.2


def arguments(graph: Graph) -> list[object]:
    return [(op.name, op.args, op.kwargs, op.outputs) for op in graph.ops]


@pytest.fixture
def structure(tmp_path: Path) -> Graph:
    return read_execution_trace(write(tmp_path / "et.json.gz", trace(step(), "1.1.1-chakra.0.0.4")))


def test_an_execution_trace_sent_to_another_process_still_has_its_arguments(structure: Graph):
    sent = pickle.loads(pickle.dumps(structure))
    assert isinstance(sent.ops.detail, LazyOps)
    assert arguments(sent) == arguments(structure)


def test_so_has_one_that_was_joined_with_a_profile(structure: Graph):
    joined = join_traces(structure, structure)
    assert arguments(pickle.loads(pickle.dumps(joined))) == arguments(structure)


def test_so_has_a_chakra_trace(structure: Graph, tmp_path: Path):
    [path] = write_chakra(Job([structure]), tmp_path / "chakra")
    graph = read_chakra(path)
    assert arguments(pickle.loads(pickle.dumps(graph))) == arguments(graph)


def test_calls_whose_temporaries_every_report_adds_up_come_along(structure: Graph):
    sent = pickle.loads(pickle.dumps(structure))
    Path(structure.source).unlink()
    rows = [row for row, op in enumerate(structure.ops) if op.name in RULES]
    assert [sent.ops[row].args for row in rows] == [structure.ops[row].args for row in rows] != []


def test_the_file_is_read_once_and_only_when_asked(structure: Graph):
    reads = []

    def read(path: Path) -> Graph:
        reads.append(path)
        return structure

    lazy = LazyOps(read, Path("et.json"))
    assert reads == []
    assert [lazy(row).name for row in (2, 3)] == ["aten::linear", "aten::addmm"]
    assert len(reads) == 1


def test_the_three_steps_of_a_trace_are_three_steps(shared: Path):
    graph = read_execution_trace(shared / "public/wild/param_resnet_three_steps_et.json.gz")
    assert [step.name for step in graph.steps] == ["ProfilerStep#6", "ProfilerStep#7", "ProfilerStep#8"]
    assert [len(graph.between(step.start, step.end).ops) for step in graph.steps] == [4796] * 3
