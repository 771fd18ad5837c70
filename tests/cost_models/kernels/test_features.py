from foretrace.cost_models.kernels.features import (
    argument,
    bitmask,
    bool_argument,
    ceil_div,
    channels_last,
    dtype_argument,
    int_argument,
    int_list_argument,
    ints_in,
    strides_of,
    tensors_of,
)
from foretrace.graph import Constant, Op, Tensor
from foretrace.graph.op import is_contiguous


def test_an_argument_that_is_absent_or_none_gives_the_default():
    assert argument(Op("a", (None,)), 0, "x", 7) == 7
    assert int_argument(Op("a", (True,)), 0, "x", 3) == 3
    assert int_list_argument(Op("a", ([2],)), 0, "x", 3, 1) == [2, 2, 2]
    assert int_list_argument(Op("a"), 0, "x", 2, 1) == [1, 1]
    assert not bool_argument(Op("a", (1,)), 0, "x")
    assert bitmask(None) == 0
    assert ints_in("text") == []


def test_an_argument_is_found_by_position_or_by_name():
    placed, named = Op("a", (0, [2, None, 3], -1, True)), Op("a", (), {"dim": [0]})
    assert argument(placed, 1, "dim") == [2, None, 3] and argument(named, 1, "dim") == [0]
    assert ints_in(argument(placed, 1, "dim")) == [2, 3]
    assert int_argument(placed, 2, "x", 0) == -1 and bool_argument(placed, 3, "x")
    assert bitmask([True, False, True]) == 5


def test_tensors_are_those_that_an_op_names_in_its_order():
    one, two, three = (Tensor((n,), "int8") for n in (1, 2, 3))
    op = Op("a", (one, [two, None]), {"other": three, "dtype": Constant("dtype", "int8")})
    assert tensors_of(op) == op.tensors == [one, two, three]


def test_dimensions_of_one_element_may_have_any_stride():
    assert is_contiguous(Tensor((1, 4), "int8", stride=(99, 1)))
    assert not is_contiguous(Tensor((2, 4), "int8", stride=(8, 1)))


def test_strides_that_are_not_known_are_dense():
    assert strides_of(Tensor((2, 3), "int8")) == (3, 1)
    assert not channels_last(Tensor((2, 3, 4, 4), "int8"))
    assert channels_last(Tensor((2, 8, 4, 4), "int8", stride=(128, 1, 32, 8)))


def test_a_dtype_is_read_from_a_constant_only():
    assert dtype_argument(Op("a", (), {"dtype": Constant("dtype", "int8")}), "float32") == "int8"
    assert dtype_argument(Op("a", (), {"dtype": None}), "float32") == "float32"


def test_pieces_are_counted_up():
    assert (ceil_div(0, 4), ceil_div(1, 4), ceil_div(8, 4), ceil_div(3, 0)) == (0, 1, 2, 0)
