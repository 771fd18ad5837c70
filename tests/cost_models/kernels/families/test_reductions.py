from foretrace.cost_models.kernels.families.reductions import merged, reduce_plan
from foretrace.graph import Tensor


def test_dimensions_that_lie_side_by_side_are_one():
    assert merged(Tensor((4, 8, 16), "float32"), {1, 2}) == ([(128, 1)], [(4, 128)])


def test_kept_dimensions_keep_the_order_of_the_result_even_where_memory_has_another():
    turned = Tensor((4, 64, 8, 100), "float32", stride=(51200, 800, 1, 8))
    assert merged(turned, {0})[1] == [(100, 8), (8, 1), (64, 800)]


def test_rows_that_are_summed_up_lie_along_a_warp():
    cut = reduce_plan(Tensor((1000, 4096), "float32"), {1}, processors=132)
    assert cut.along and cut.width == 32 and cut.split == 1


def test_columns_are_taken_four_at_a_time_where_they_are_a_multiple_of_four():
    assert reduce_plan(Tensor((512, 1024), "float32"), {0}, processors=132).wide == 4
    assert reduce_plan(Tensor((512, 1022), "float32"), {0}, processors=132).wide == 2
    assert reduce_plan(Tensor((512, 1023), "float32"), {0}, processors=132).wide == 1


def test_few_long_sums_are_shared_by_many_blocks():
    cut = reduce_plan(Tensor((2, 10_000_000), "float32"), {1}, processors=132)
    assert cut.split > 100 and cut.each <= 256


def test_a_reduction_of_nothing_has_a_plan():
    assert reduce_plan(Tensor((), "float32"), set(), processors=132).blocks == 1
    assert reduce_plan(Tensor((0, 4), "float32"), {0}, processors=132).blocks >= 0
