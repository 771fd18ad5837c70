"""Arguments of ops as a profiler trace tells them."""

from pathlib import Path
from typing import Any

import pytest

from foretrace.formats.kineto import read_kineto
from foretrace.formats.kineto.arguments import decoded, values, with_enumerations
from foretrace.graph import Constant, Op, Tensor
from tests.narrowing import instance
from tests.traces import Trace


def op(tmp_path: Path, **args: Any) -> Op:
    trace = Trace()
    with trace.op("aten::some", **args):
        pass
    return read_kineto(trace.write(tmp_path / "trace.json")).ops[0]


def test_tensors_have_shape_dtype_and_stride(tmp_path: Path) -> None:
    fields = {
        "Input Dims": [[4, 8], [8], []],
        "Input type": ["c10::BFloat16", "long int", "float"],
        "Input Strides": [[1, 4], [1], []],
        "Concrete Inputs": ["", "", ""],
    }
    assert op(tmp_path, **fields).args == (
        Tensor((4, 8), "bfloat16", stride=(1, 4)),
        Tensor((8,), "int64", stride=(1,)),
        Tensor((), "float32"),
    )


@pytest.mark.parametrize("kind", ["Int", "Double", "Bool", "Scalar"])
def test_a_number_of_an_older_profiler_is_no_tensor(tmp_path: Path, kind: str) -> None:
    fields = {"Input Dims": [[4, 8], [4, 8], []], "Input type": ["float", "float", kind]}
    assert [value for value in op(tmp_path, **fields).args if isinstance(value, Tensor)] == [
        Tensor((4, 8), "float32")
    ] * 2


def test_a_tensor_without_strides_among_others_that_have_them_is_sparse(tmp_path: Path) -> None:
    fields = {"Input Dims": [[100, 8], [100, 8]], "Input type": ["float", "float"], "Concrete Inputs": ["", ""]}
    into, gradient = (
        instance(Tensor, value) for value in op(tmp_path, **fields, **{"Input Strides": [[8, 1], []]}).args
    )
    assert (into.layout, gradient.layout) == ("strided", "sparse_coo")
    assert [instance(Tensor, value).layout for value in op(tmp_path, **fields).args] == ["strided", "strided"]


def test_lists_of_tensors_are_lists(tmp_path: Path) -> None:
    fields = {"Input Dims": [[[4, 8], [3]], []], "Input type": ["TensorList", ""], "Concrete Inputs": ["", ""]}
    tensors, nothing = op(tmp_path, **fields).args
    assert nothing is None
    assert [instance(Tensor, tensor).shape for tensor in instance(list, tensors)] == [(4, 8), (3,)]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("4", 4),
        ("-1", -1),
        ("1e-08", 1e-8),
        ("0.10000000000000001", 0.1),
        ("True", True),
        ("False", False),
        ("inf", Constant("float", "inf")),
        ("[1, 2]", [1, 2]),
        ("[]", []),
        ("cuda:0", "cuda:0"),
    ],
)
def test_scalars_keep_their_value(text: str, value: object) -> None:
    assert values(([[]], ["Scalar"], [], [text])) == [value]


def test_a_scalar_whose_value_the_trace_lacks_is_not_guessed() -> None:
    assert values(([[]], ["Scalar"], [], [])) == [Constant("object", "Scalar")]


def test_signatures_that_make_no_sense_have_no_arguments() -> None:
    assert decoded(b"1,2,3,4") == ([], [], [], [])
    assert decoded(b"[[[[") == ([], [], [], [])


def test_a_row_keeps_its_arguments_when_rows_are_picked(tmp_path: Path) -> None:
    trace = Trace()
    for size in (3, 5, 7):
        arguments: dict[str, Any] = {"Input Dims": [[size]], "Input type": ["float"]}
        with trace.op("aten::relu", **arguments):
            pass
    ops = read_kineto(trace.write(tmp_path / "trace.json")).ops
    assert ops.rows(ops.start > ops.start[0])[1].tensors[0].shape == (7,)


@pytest.mark.parametrize(
    ("name", "number", "enumeration", "value"),
    [("aten::_to_copy", 6, "dtype", "float32"), ("aten::clone", 0, "memory_format", "contiguous_format")],
)
def test_the_number_of_a_dtype_or_a_layout_becomes_its_name(name, number, enumeration, value):
    made = with_enumerations(Op(name, (Tensor((4, 8), "bfloat16", stride=(1, 4)), number)))
    assert made.kwargs == {enumeration: Constant(enumeration, value)} and len(made.args) == 1


def test_a_number_that_stands_for_nothing_stays():
    for odd in (99, -1, None, True):
        copied = Op("aten::_to_copy", (Tensor((4,), "float32"), odd))
        assert with_enumerations(copied) == copied
