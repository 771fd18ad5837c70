from foretrace.cost_models.kernels.tensor_iterator import POINTWISE_COLUMNS, broadcast_shape, pointwise, traverse
from foretrace.graph import Tensor


def test_a_row_that_is_added_to_all_rows_is_read_once():
    way = traverse((64, 32), [Tensor((64, 32), "float32"), Tensor((32,), "float32")])
    assert way.sizes == (32, 64) and way.distinct(1) == 32 and way.broadcast_operands == 1


def test_shapes_broadcast_from_the_last_dimension_on():
    assert broadcast_shape([Tensor((3, 1), "int8"), Tensor((2, 1, 5), "int8")]) == (2, 3, 5)
    assert broadcast_shape([]) == ()


def test_the_short_way_over_dense_operands_says_what_the_long_way_says():
    straight = Tensor((64, 32), "float32")
    spelled = Tensor((1, 64, 32), "float32", stride=(7, 32, 1))
    short = pointwise([], [straight], [straight])
    long = pointwise([], [spelled], [straight])
    differing = [name for name, a, b in zip(POINTWISE_COLUMNS, short.features, long.features) if a != b]
    assert short.work == long.work
    assert not [name for name in differing if name != "largest_step"]
