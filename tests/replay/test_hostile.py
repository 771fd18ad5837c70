"""Recordings made to do harm: whatever they say, a benchmark calls operators, and nothing else."""

from __future__ import annotations

import ast
import json
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretrace.graph import Constant, Content, ForetraceError, Graph, Indices, Op, OpTable, Span, Storage, Tensor
from foretrace.graph.op import RESIZE
from foretrace.replay.generate.choices import Choices, packages
from foretrace.replay.generate.folder import write_benchmark
from foretrace.replay.generate.timing import schedule_of
from foretrace.replay.running import is_benchmark

OPERATOR = re.compile(r"(aten|prims|c10d|_c10d_functional|fsdp)\.\w+(\.\w+)?", re.ASCII)
HELPERS = {
    "begin", "pace", "resume", "stand_in", "device", "use_stream", "record_event", "wait_event", "record_stream",
    "synchronize_event", "synchronize_stream", "synchronize", "resize", "forward", "backward", "optimizer", "other",
    "tensor", "memory", "view", "sparse", "values", "constant", "normal", "uniform", "either", "triangle", "arange",
    "tril", "offsets", "ids", "even", "bags",
}  # fmt: skip
ATTRIBUTES = re.compile(r"torch(\.ops)?\.\w+|live\.clear", re.ASCII)
PLAIN = (
    ast.Module, ast.FunctionDef, ast.arguments, ast.arg, ast.Expr, ast.Assign, ast.AugAssign, ast.Delete, ast.Return,
    ast.Pass, ast.Call, ast.keyword, ast.Name, ast.Constant, ast.List, ast.Tuple, ast.UnaryOp, ast.USub, ast.BinOp,
    ast.Add, ast.Sub, ast.Load, ast.Store, ast.Del, ast.Attribute, ast.Import, ast.ImportFrom, ast.alias, ast.Starred,
)  # fmt: skip


def tensor(number: int = 0, **facts: Any) -> Tensor:
    return Tensor(
        **{"shape": (4,), "dtype": "float32", "device": "cpu", "stride": (1,), **facts}, id=number, storage=number
    )


def graph_of(*ops: Op, **facts: Any) -> Graph:
    return Graph(OpTable.of(list(ops)), **facts)


def harmless_code(text: str) -> None:
    """Fails where a file of a benchmark does anything but call operators and the harness."""
    for node in ast.walk(ast.parse(text)):
        assert isinstance(node, PLAIN), ast.dump(node)
        if isinstance(node, ast.Import):
            assert [alias.name for alias in node.names] == ["torch"]
        elif isinstance(node, ast.ImportFrom):
            assert node.module in ("math", "harness.host", "harness.inputs")
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            assert OPERATOR.fullmatch(name) or name == "live.clear" or re.sub(r"_\d+$", "", name) in HELPERS, name
        elif isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            assert OPERATOR.match(name) or ATTRIBUTES.fullmatch(name)


def written(graph: Graph, folder: Path, **choices: Any) -> dict[str, str]:
    made = write_benchmark(graph, folder, Choices(**choices))
    files = {path.name: path.read_text() for path in made.iterdir() if path.is_file()}
    harmless_code(files["step.py"])
    harmless_code(files["inputs.py"])
    return files


BAD_NAMES = [
    "aten::mm(); import os; os.system('touch {mark}') #",
    "aten::relu.default(__import__('os').system('touch {mark}'))",
    "os::system",
    "aten::__class__",
    "aten::from_file",
    "aten::save",
    "aten::zfill",
    "builtins::exec",
    "aten::relu\n    __import__('os').system('touch {mark}')",
    "torch::hub::load",
    "",
    "aten",
    "aten::lambda",
    "load_library::x",
]


@pytest.mark.parametrize("name", BAD_NAMES)
@pytest.mark.parametrize("overload", ["default", "default(); import os", "__class__"])
def test_an_op_that_is_none_is_a_stand_in(name: str, overload: str, tmp_path: Path, loaded: Callable[..., Any]) -> None:
    mark = tmp_path / "mark"
    bad = Op(name.format(mark=mark), (tensor(0),), outputs=(tensor(1),), overload=overload)
    good = Op("aten::relu", (tensor(1),), outputs=(tensor(2),), overload="default")
    graph = graph_of(bad, good)
    written(graph, tmp_path / "written")
    benchmark = loaded(graph)
    assert [benchmark.facts["calls"][number]["name"] for number in benchmark.called] == ["aten::relu"]
    assert benchmark.source.stand_ins == ([0] if "::" in name else [])
    assert not mark.exists()


BAD_VALUES: list[Any] = [
    "'); import os; os.system('touch mark') #",
    "x)  # 99",
    "line\nbreak\r\x85\u2028\x00\x1b[31m",
    "\ud800",
    '"""',
    "\\",
    float("nan"),
    float("-inf"),
    10**400,
    -(2**63),
    Constant("dtype", "float32; import os"),
    Constant("device", 'cpu"); import os; device("cpu'),
    Constant("layout", "system"),
    Constant("complex", "(1+2j).__class__"),
    Constant("stream", "1); import os"),
    Constant("stream", "9" * 5000),
    Constant("generator", "__import__('os')"),
    Constant("object", "__import__('os')"),
    Constant("anything", "x\ny"),
    {"a": {"b": 1}},
    [[[[[]]]]],
]


@pytest.mark.parametrize("value", BAD_VALUES, ids=[f"value{number}" for number in range(len(BAD_VALUES))])
def test_an_argument_becomes_a_literal_or_nothing(value: Any, tmp_path: Path) -> None:
    plain = Op("aten::relu", (tensor(0), value), {"named": value}, (tensor(1),), overload="default")
    written(graph_of(plain), tmp_path / "one")


@pytest.mark.parametrize("name", ["x=1); import os #", "lambda", "__class__", "a b", "", "ключ"])
def test_a_keyword_that_is_no_word_is_not_written(name: str, tmp_path: Path) -> None:
    op = Op("aten::relu", (tensor(0),), {name: 1}, (tensor(1),), overload="default")
    files = written(graph_of(op), tmp_path / "one")
    assert "stand_in(0)" in files["step.py"]


def test_lists_in_lists_without_end_are_not_written(tmp_path: Path) -> None:
    deep: Any = 1
    for _ in range(150):
        deep = [deep]
    op = Op("aten::relu", (tensor(0), deep), outputs=(tensor(1),), overload="default")
    assert "lists nested too deep" in written(graph_of(op), tmp_path / "one")["step.py"]


words = st.text(max_size=30)
names = st.one_of(words, st.builds("aten::{}".format, words), st.sampled_from(["aten::relu", "aten::mm", "cuda::x"]))
constants = st.builds(
    Constant, st.sampled_from(["dtype", "device", "layout", "complex", "stream", "event", "object", "group"]), words
)
tensors = st.builds(
    Tensor,
    shape=st.tuples(st.integers(-3, 1 << 70)),
    dtype=st.one_of(words, st.sampled_from(["float32", "int64"])),
    device=st.one_of(words, st.sampled_from(["cpu", "cuda:0", ""])),
    stride=st.one_of(st.none(), st.tuples(st.integers(-3, 1 << 40))),
    offset=st.integers(-5, 1 << 40),
    id=st.integers(-1, 5),
    storage=st.integers(-1, 5),
    layout=st.one_of(words, st.sampled_from(["strided", "sparse_coo"])),
)
atoms = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), words, constants, tensors)
anything = st.recursive(atoms, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(words, inner)))
ops = st.builds(
    Op,
    name=names,
    args=st.lists(anything, max_size=4).map(tuple),
    kwargs=st.dictionaries(words, anything, max_size=2),
    outputs=st.lists(anything, max_size=3).map(tuple),
    overload=words,
    module=words,
    stream=st.integers(0, 3),
)


@settings(max_examples=60)
@given(st.lists(ops, min_size=1, max_size=6), words, words, st.booleans())
def test_nothing_but_operators_ever_reaches_the_code(made: list[Op], source: str, note: str, obfuscate: bool) -> None:
    graph = graph_of(*made, source=source, notes=[note], device=note)
    with tempfile.TemporaryDirectory() as folder:
        try:
            files = written(graph, Path(folder) / "made", obfuscate=obfuscate)
        except ForetraceError:
            return
        for name in ("calls.json", "original.json"):
            json.loads(files[name])
        calls = json.loads(files["calls.json"])
        for text in (files["README.md"], *calls["notes"], *(call["name"] for call in calls["calls"])):
            assert re.fullmatch(r"[ -~\n…–]*", text), text


def test_notes_and_paths_can_not_write_a_page(tmp_path: Path) -> None:
    relu = Op("aten::relu", (tensor(0),), outputs=(tensor(1),), overload="default")
    graph = graph_of(relu, source="a`<script>`\n# b", notes=["<img src=x>\n\n# Title [x](http://y) \x1b[31m"])
    files = written(graph, tmp_path / "one")
    assert not re.search(r"<script|<img|\[x\]|\x1b|^# (b|Title)", files["README.md"], re.MULTILINE)
    assert "\x1b" not in files["calls.json"]


@pytest.mark.parametrize("name", ["cuda::event_record", "cuda::stream_wait_event", "storage::resize_"])
def test_a_stream_of_no_number_is_not_named(name: str, tmp_path: Path) -> None:
    number = Constant("stream", "9" * 5000)
    relu = Op("aten::relu", (tensor(0),), outputs=(tensor(1),), overload="default")
    assert "999" not in written(graph_of(Op(name, (number, number, 1)), relu), tmp_path / "one")["step.py"]


@pytest.mark.parametrize("shape", [(1 << 70,), (int(1e308),) * 20])
def test_a_shape_beyond_every_memory_is_said(shape: tuple[int, ...], tmp_path: Path) -> None:
    relu = Op("aten::relu", (tensor(0, shape=shape, stride=None),), outputs=(tensor(1),), overload="default")
    with pytest.raises(ForetraceError, match="a number that no operator takes"):
        written(graph_of(relu), tmp_path / "input")
    zeros = Op("aten::zeros", ([4],), outputs=(tensor(1, shape=shape, stride=None),), overload="default")
    assert json.loads(written(graph_of(zeros), tmp_path / "made")["calls.json"])["memory"]["peak"] == 1 << 62


def test_a_layout_that_there_is_none_of_is_refused(tmp_path: Path) -> None:
    odd = graph_of(Op("aten::relu", (tensor(0, layout="w'eird"),), outputs=(tensor(1),)), source="run/rank-0")
    with pytest.raises(ForetraceError, match="run/rank-0 can't be made into a benchmark: it needs a layout"):
        write_benchmark(odd, tmp_path / "out", Choices())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("layout", ["sparse_coo", "sparse_csr", "weird"])
def test_a_sparse_tensor_may_end_with_a_storage_of_its_own(layout: str, tmp_path: Path) -> None:
    odd = tensor(1, layout=layout)
    ops = [
        Op("aten::relu", (tensor(0),), outputs=(odd,)),
        Op("aten::relu", (odd,), outputs=(tensor(2),)),
        Op("aten::relu", (tensor(2),), outputs=(tensor(3),), frees=(1,)),
    ]
    assert "t1" in written(graph_of(*ops), tmp_path / "out")["step.py"]


def test_a_step_larger_than_memory_is_refused_before_it_is_made(tmp_path: Path, loaded: Callable[..., Any]) -> None:
    huge = tensor(0, shape=(1 << 50,))
    with pytest.raises(MemoryError, match="at its peak"):
        loaded(graph_of(Op("aten::relu", (huge,), outputs=(tensor(1, shape=(1 << 50,)),), overload="default")))


@pytest.mark.parametrize("facts", [{"shape": (-4,)}, {"offset": -7}, {"stride": (-2,)}, {"offset": 1 << 61}])
def test_a_tensor_that_can_not_be_is_told_and_nothing_else_happens(
    facts: dict[str, Any], loaded: Callable[..., Any]
) -> None:
    op = Op("aten::relu", (tensor(0, **facts),), outputs=(tensor(1),), overload="default")
    with pytest.raises((RuntimeError, MemoryError)):
        loaded(graph_of(op, storages={0: Storage(0, 16, "cpu", -1, -1)}))


@pytest.mark.parametrize(
    "content",
    [
        Content("ids", {"low": 0, "high": 9, "unique": 2, "reuse": [1 << 60]}),
        Content("ids", {"low": 9, "high": 0}),
        Content("ids", {"low": 0, "high": 9, "nones": -5, "none": 1}),
        Content("offsets", {"first": 0, "last": 4, "steps": [-1]}),
        Content("arange", {"start": 0, "step": 1, "period": 0}),
        Content("tril", {"side": 1 << 40, "offset": -1, "row": 0}),
        Content("values", {"values": ["__import__('os')"] * 4}),  # type: ignore[dict-item]
        Content("constant", {"value": "x"}),  # type: ignore[dict-item]
        Content("__import__", {"value": 1}),
        Content("constant", {"value": 1, "x); import os #": 1}),
        Content("constant", {"value": 10**30}),
        Content("constant", {"value": float("nan")}),
    ],
    ids=lambda content: f"{content.kind}-{len(content.facts)}",
)
def test_a_content_that_makes_no_sense_fills_nothing(content: Content, loaded: Callable[..., Any]) -> None:
    whole = tensor(0, dtype="int64")
    op = Op("aten::neg", (whole,), outputs=(tensor(1, dtype="int64"),), overload="default")
    benchmark = loaded(graph_of(op, contents={0: content}))
    assert benchmark.called == {0} and benchmark.inputs[0].shape == (4,)


def test_statistics_of_ids_can_not_ask_for_more_rows_than_there_are(loaded: Callable[..., Any]) -> None:
    ids = tensor(0, dtype="int64")
    table, rows = tensor(1, shape=(10, 2), stride=(2, 1)), tensor(2, shape=(4, 2), stride=(2, 1))
    op = Op("aten::embedding", (table, ids), outputs=(rows,), overload="default")
    claimed = Indices(op=0, rows=10, count=1 << 60, unique=1 << 60, bags=1, reuse=(1 << 60,))
    benchmark = loaded(graph_of(op, indices=[claimed]))
    assert benchmark.called == {0} and 0 <= int(benchmark.inputs[-1].min()) <= int(benchmark.inputs[-1].max()) < 10


@pytest.mark.parametrize("times", [(0.0, float("inf")), (0.0, 1e18), (-1e300, 1e300), (0.0, float("nan"))])
def test_times_that_make_no_sense_are_not_waited_for(times: tuple[float, float]) -> None:
    first, second = times
    made = [Op("aten::relu", start_us=first, end_us=first + 1), Op("aten::relu", start_us=second, end_us=second + 1)]
    graph = graph_of(*made, steps=[Span("ProfilerStep#1", -1.0, 10.0)])
    with np.errstate(all="ignore"):
        schedule = schedule_of(graph, [0, 1])
    assert not schedule.gap_us.any() and not schedule.call_us.any() and schedule.tail_us == 0.0


def test_a_recording_is_never_run_as_a_program(tmp_path: Path) -> None:
    (tmp_path / "rank-0").mkdir()
    for name in ("run.py", "calls.json", "rank-0/ops.jsonl.gz"):
        (tmp_path / name).write_text("")
    assert not is_benchmark(tmp_path)


@pytest.mark.parametrize("entry", ["os; import os", "a=b; import os", "a=b c", "=x", "a=.b", "a=..", "__x__", "a=b-c"])
def test_packages_of_custom_ops_are_names(entry: str) -> None:
    with pytest.raises(ForetraceError, match="names no operators"):
        packages([entry])


@pytest.fixture
def damaged(tmp_path: Path) -> Iterator[Callable[[bytes], Path]]:
    """Makes a recording whose structure holds these lines."""
    import gzip

    def make(lines: bytes) -> Path:
        folder = tmp_path / "recording" / "rank-0"
        folder.mkdir(parents=True)
        (folder.parent / "job.json").write_text('{"version": 1}')
        (folder / "ops.jsonl.gz").write_bytes(gzip.compress(lines))
        return folder.parent

    yield make


@pytest.mark.parametrize("line", [b'{"op": "aten::x", "phase": "x()", "args": []}', b"[" * 100000, b"{}", b"\xff\x00"])
def test_a_damaged_recording_is_said(line: bytes, damaged: Callable[[bytes], Path], tmp_path: Path) -> None:
    from foretrace.api import benchmark

    with pytest.raises(ForetraceError):
        benchmark(damaged(line), tmp_path / "out")


@pytest.mark.parametrize("args", [(), (1,), ("a", {}, None), (0, 1, -5), (0, 1, 2.5), (0, 0, 0, 0)], ids=str)
def test_a_storage_is_not_given_a_size_that_is_none(args: tuple[Any, ...], loaded: Callable[..., Any]) -> None:
    good = Op("aten::relu", (tensor(0),), outputs=(tensor(1),), overload="default")
    for choices in (Choices(), Choices(dtype="bf16")):
        benchmark = loaded(graph_of(Op(RESIZE, args), good), choices)
        assert benchmark.called == {1} and "resize(" not in (benchmark.folder / "step.py").read_text()


def test_a_sparse_tensor_that_is_its_own_part_has_none(tmp_path: Path) -> None:
    whole = Tensor((5, 4), "float32", "cpu", id=5, layout="sparse_coo")
    takes = [Op(f"aten::_{part}", (whole,), outputs=(whole,), overload="default") for part in ("indices", "values")]
    assert "sparse(None, None, [5, 4]" in written(graph_of(*takes), tmp_path / "one")["inputs.py"]
