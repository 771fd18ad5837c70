import math

import torch

from foretrace.calibration.timing.call import Call
from foretrace.cost_models.kernels.families import CallContext, case_number, family_of
from foretrace.cost_models.kernels.families.fourier import Fourier
from foretrace.graph import Op, Tensor
from foretrace.platform.device import Device
from foretrace.platform.measurements.cases import Case

CONTEXT = CallContext(Device.named("h200"))


def features(length: int) -> dict[str, float]:
    op = Op("aten::_fft_r2c", (Tensor((8, length), "float32"), [1], 0, True))
    return dict(zip(Fourier.columns, Fourier().describe(op, CONTEXT).features))


def test_transforms_have_a_family_of_their_own():
    found = family_of(Op("aten::_fft_c2c", (Tensor((4, 64), "complex64"), [1], 0, True)))
    assert found is not None and found.name == "fourier"


def test_lengths_with_a_large_factor_are_told_from_smooth_ones():
    smooth, prime = features(1024), features(1021)
    assert smooth["left"] == 0 and prime["left"] == math.log2(1021) and smooth["twos"] == 10


def test_the_length_of_a_real_result_is_the_one_that_is_asked_for():
    half = Tensor((8, 33), "complex64")
    described = Fourier().describe(Op("aten::_fft_c2r", (half, [1], 0, 64)), CONTEXT)
    assert dict(zip(Fourier.columns, described.features))["length"] == 6


def test_a_case_runs_as_it_is_drawn():
    case = next(case for n in range(50) if (case := case_number("fourier", n, 2**12, "cpu")).op.name.endswith("c2r"))
    made = Call(Case(case.op), torch.device("cpu"))()
    assert made.shape[-1] == case.op.args[3] and made.dtype == torch.float32
