from foretrace.cost_models.kernels.families import FAMILIES, CallContext
from foretrace.cost_models.kernels.families.optimizers import launches_of
from foretrace.graph import Op, Tensor, Value
from foretrace.platform.device import Device

OPTIMIZERS = FAMILIES["optimizers"]
FACTS = CallContext(Device.named("h200"))


def column(op: Op, name: str) -> float:
    return OPTIMIZERS.describe(op, FACTS).features[OPTIMIZERS.columns.index(name)]


def test_a_launch_is_full_when_its_tensors_or_its_blocks_are():
    assert launches_of([10] * 110, lists=1) == 1
    assert launches_of([10] * 111, lists=1) == 2
    assert launches_of([65536 * 320], lists=1) == 1
    assert launches_of([65536 * 641], lists=1) == 3
    assert launches_of([10] * 61, lists=5) == 3
    assert launches_of([], lists=1) == 0


def test_a_number_of_another_dtype_makes_a_kernel_for_each_tensor():
    listed: list[Value] = [Tensor((64, 64), "bfloat16")] * 7
    assert column(Op("aten::_foreach_mul_", (listed, Tensor((), "bfloat16"))), "launches") == 1
    assert column(Op("aten::_foreach_mul_", (listed, Tensor((), "float32"))), "launches") == 7


def test_a_fused_update_writes_all_but_the_gradients():
    listed: list[Value] = [Tensor((1024,), "float32")] * 3
    steps: list[Value] = [Tensor((), "float32")] * 3
    op = Op("aten::_fused_adamw_", (listed, listed, listed, listed, [], steps))
    assert OPTIMIZERS.describe(op, FACTS).work.bytes == 7 * 3 * 4096
