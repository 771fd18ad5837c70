from foretrace.cost_models.kernels.families import CallContext
from foretrace.cost_models.kernels.families.elementwise import Elementwise
from foretrace.graph import Op, Tensor
from foretrace.platform.device import Device


def test_an_out_tensor_is_written_and_not_read():
    x, context = Tensor((1024, 1024), "float32"), CallContext(Device.named("h200"))
    into = Elementwise().describe(Op("aten::exp", (x,), {"out": x}, overload="out"), context)
    assert into.work.bytes == Elementwise().describe(Op("aten::exp", (x,)), context).work.bytes == 2 * x.nbytes
