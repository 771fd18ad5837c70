import torch

from foretrace.calibration.timing.call import Call
from foretrace.cost_models.kernels.families import CallContext, case_number, family_of
from foretrace.cost_models.kernels.families.grid_sampling import GridSampling
from foretrace.graph import Op, Tensor
from foretrace.platform.device import Device

IMAGE, GRID = Tensor((4, 16, 64, 64), "float32"), Tensor((4, 32, 32, 2), "float32")
CONTEXT = CallContext(Device.named("h200"))


def features(op: Op) -> dict[str, float]:
    return dict(zip(GridSampling.columns, GridSampling().describe(op, CONTEXT).features))


def test_sampling_has_a_family_of_its_own():
    found = family_of(Op("aten::grid_sampler_2d", (IMAGE, GRID, 0, 0, False)))
    assert found is not None and found.name == "grid_sampling"


def test_image_and_points_are_found_behind_the_gradient():
    grad = Tensor((4, 16, 32, 32), "float32")
    native = features(Op("aten::grid_sampler_2d_backward", (grad, IMAGE, GRID, 0, 0, False, [True, True])))
    cudnn = features(Op("aten::cudnn_grid_sampler_backward", (IMAGE, GRID, grad)))
    assert native["pixels"] == cudnn["pixels"] == 12 and native["points"] == cudnn["points"] == 12


def test_points_of_a_case_lie_in_the_image():
    cases = (case_number("grid_sampling", n, 2**14, "cpu") for n in range(40))
    case = next(case for case in cases if case.op.name == "aten::grid_sampler_2d")
    assert (Call(case, torch.device("cpu"))["grid"].abs() <= 1.5).all()
