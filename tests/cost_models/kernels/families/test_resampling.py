from foretrace.cost_models.kernels.families import CallContext, case_number, family_of
from foretrace.cost_models.kernels.families.resampling import Resampling
from foretrace.graph import Op, Tensor
from foretrace.platform.device import Device
from tests.narrowing import instance

IMAGE = Tensor((4, 16, 32, 32), "float32")


def test_interpolation_has_a_family_of_its_own():
    resized, pooled = Op("aten::upsample_bilinear2d", (IMAGE, [64, 64], False)), Op("aten::avg_pool2d", (IMAGE, [2, 2]))
    assert [family.name for op in (resized, pooled) if (family := family_of(op))] == ["resampling", "pooling"]


def test_a_larger_result_moves_more_bytes():
    context = CallContext(Device.named("h200"))
    small, large = (
        Resampling().describe(Op("aten::upsample_bilinear2d", (IMAGE, [side, side], False)), context).work
        for side in (64, 256)
    )
    assert large.bytes > 10 * small.bytes


def test_cases_enlarge_by_more_than_two():
    ops = [case_number("resampling", n, 2**24, "cuda").op for n in range(100)]
    forward = [op for op in ops if not op.name.endswith("backward")]
    assert max(instance(list, op.args[1])[0] / op.tensors[0].shape[2] for op in forward) >= 8
