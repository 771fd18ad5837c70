from foretrace.cost_models.kernels.families import FAMILIES, CallContext, family_of
from foretrace.graph import Constant, Op, Tensor
from foretrace.platform.device import Device

COPIES = FAMILIES["copies"]
FACTS = CallContext(Device.named("h200"))
MATRIX = Tensor((64, 32), "float32")


def bytes_of(op: Op) -> float:
    return COPIES.describe(op, FACTS).work.bytes


def test_a_conversion_reads_one_dtype_and_writes_the_other():
    op = Op("aten::_to_copy", (MATRIX,), {"dtype": Constant("dtype", "bfloat16")})
    assert bytes_of(op) == MATRIX.nbytes + MATRIX.nbytes / 2


def test_a_gradient_of_a_part_clears_the_whole_first():
    op = Op("aten::slice_backward", (MATRIX, [64, 1024], 1, 0, 32, 1))
    assert bytes_of(op) == 2 * MATRIX.nbytes + 64 * 1024 * 4


def test_what_crosses_the_bus_is_a_transfer():
    host = Tensor((64, 32), "float32", device="cpu")
    device = Tensor((64, 32), "float32", device="cuda:0")
    assert family_of(Op("aten::copy_", (device, host))) is FAMILIES["transfers"]
    assert family_of(Op("aten::copy_", (device, device))) is COPIES
    assert family_of(Op("aten::_to_copy", (device,), {"device": Constant("device", "cpu")})) is FAMILIES["transfers"]


def test_a_transposing_copy_jumps():
    turned = Op("aten::clone", (Tensor((64, 32), "float32", stride=(1, 64)),),
                {"memory_format": Constant("memory_format", "contiguous_format")})  # fmt: skip
    features = COPIES.describe(turned, FACTS).features
    assert features[COPIES.columns.index("jumps")] == 1
