from foretrace.cost_models.kernels.families.indexing import Indexing
from foretrace.cost_models.kernels.family import CallContext, Description
from foretrace.graph import Op, Tensor
from foretrace.platform.device import Device


def described(table: Tensor, mask: Tensor) -> Description:
    return Indexing().describe(Op("aten::index", (table, [mask])), CallContext(Device.named("h200")))


def test_a_mask_of_several_dimensions_selects_as_one_of_the_merged_dimension():
    both = described(Tensor((6, 779, 512), "float32"), Tensor((6, 779), "bool"))
    merged = described(Tensor((6 * 779, 512), "float32"), Tensor((6 * 779,), "bool"))
    assert both == merged
    whole = described(Tensor((6, 32300), "int64"), Tensor((6, 32300), "bool"))
    assert whole.work.bytes == 2 * 6 * 32300 * 8 + 6 * 32300
    sliced = described(Tensor((4, 8, 16), "float32", stride=(256, 32, 1)), Tensor((4, 8), "bool"))
    assert sliced == described(Tensor((32, 16), "float32", stride=(32, 1)), Tensor((32,), "bool"))
