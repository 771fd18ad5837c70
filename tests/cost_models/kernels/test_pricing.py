import numpy as np

from foretrace.cost_models.kernels.pricing import RETAINED_GAIN, UNKNOWN_SHARE, l2_residency
from foretrace.graph import Op, Tensor

MB = 1_000_000


def _tensor(storage: int, mb: float) -> Tensor:
    return Tensor((round(mb * MB),), "int8", "cuda:0", storage=storage)


def test_what_was_just_written_is_in_the_cache():
    made = _tensor(2, 1)
    calls = [Op("aten::relu", (_tensor(1, 1),), outputs=(made,)), Op("aten::relu", (made,))]
    assert l2_residency(calls, 50 * MB).tolist() == [0.0, RETAINED_GAIN]


def test_what_was_pushed_out_is_not():
    calls = [Op("aten::relu", (_tensor(s, mb),)) for s, mb in ((1, 1), (2, 100), (1, 1))]
    assert l2_residency(calls, 50 * MB)[2] == 0.0


def test_of_a_tensor_larger_than_the_cache_a_part_stays():
    calls = [
        Op("aten::relu", (_tensor(1, 20),)),
        Op("aten::relu", (_tensor(2, 10),)),
        Op("aten::relu", (_tensor(1, 20),)),
    ]
    np.testing.assert_allclose(l2_residency(calls, 50 * MB)[2], RETAINED_GAIN * 15 / 20)


def test_tensors_of_unknown_storage_count_half():
    assert l2_residency([Op("aten::relu", (_tensor(-1, 1),))], 50 * MB).tolist() == [RETAINED_GAIN * UNKNOWN_SHARE]


def test_tensors_of_the_host_do_not_count():
    host = Tensor((MB,), "int8", "cpu", storage=9)
    calls = [Op("aten::relu", (_tensor(1, 1),)), Op("aten::mul", (_tensor(1, 1), host))]
    assert l2_residency(calls, 50 * MB)[1] == RETAINED_GAIN
