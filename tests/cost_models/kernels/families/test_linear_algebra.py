import torch

from foretrace.calibration.timing.call import Call
from foretrace.cost_models.kernels.families import CallContext, case_number, family_of
from foretrace.cost_models.kernels.families.linear_algebra import LinearAlgebra
from foretrace.graph import Op, Tensor
from foretrace.platform.device import Device

CONTEXT = CallContext(Device.named("h200"))


def roof_us(name: str, side: int) -> float:
    return LinearAlgebra().describe(Op(name, (Tensor((side, side), "float32"),)), CONTEXT).work.us(CONTEXT.device)


def test_decompositions_have_a_family_of_their_own():
    found = family_of(Op("aten::_linalg_eigh", (Tensor((64, 64), "float32"), "L", True)))
    assert found is not None and found.name == "linear_algebra"


def test_eigenvalues_take_longer_than_a_triangle_and_grow_with_the_side():
    assert roof_us("aten::_linalg_eigh", 512) > 10 * roof_us("aten::linalg_cholesky_ex", 512)
    assert roof_us("aten::_linalg_eigh", 1024) > 1.9 * roof_us("aten::_linalg_eigh", 512)


def test_drawn_matrices_can_be_decomposed():
    cases = (case_number("linear_algebra", n, 2**12, "cpu") for n in range(80))
    triangles = [case for case in cases if case.op.name == "aten::linalg_cholesky_ex"]
    info = [Call(case, torch.device("cpu"))()[1] for case in triangles]
    assert info and not any(one.any() for one in info)
