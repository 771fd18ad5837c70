"""Kernels of torch.compile are noted as a recording would show them, and can be timed one by one."""

from __future__ import annotations

import pytest
import torch

from foretrace.calibration.timing import compiled_kernels as compiled
from foretrace.calibration.timing.compiled_kernels import operands_of, recorded_launches, run
from foretrace.calibration.timing.timer import time_cases
from foretrace.cost_models.kernels.families.compiled import ENDINGS, chain_number
from foretrace.graph import Tensor

CPU = torch.device("cpu")


class Autotuner:
    """Launches as TorchInductor's does."""

    def __init__(self) -> None:
        self.inductor_meta = {"kernel_name": "triton_poi_fused_add_0"}

    def run(self, x: torch.Tensor, out: torch.Tensor, xnumel: int, stream: int) -> None:
        out.copy_(x[:xnumel] + 1)


@pytest.mark.parametrize("number", range(40))
def test_every_chain_runs(number: int) -> None:
    chain = chain_number(number, most=4096)
    result = run(chain, operands_of(chain, CPU))
    assert str(result.dtype) == f"torch.{chain.result}"
    assert result.numel() == chain.rows * chain.columns or chain.ending in ("sum", "amax", "columns", "all")


def test_all_endings_are_drawn() -> None:
    assert {chain_number(number, most=4096).ending for number in range(200)} == set(ENDINGS) == set(compiled.ENDINGS)


def test_a_launch_is_noted_with_its_tensors_and_loops_and_still_happens() -> None:
    x, out = torch.zeros(4, 8).t(), torch.zeros(8, 4)
    with recorded_launches(Autotuner) as launches:
        Autotuner().run(x, out, 8, stream=7)
    Autotuner().run(x, out, 8, stream=7)
    (case,) = launches
    assert case.op.name == "triton_poi_fused_add_0"
    assert case.op.args == (Tensor((8, 4), "float32", stride=(1, 8)), Tensor((8, 4), "float32", stride=(4, 1)), 8, 0)
    assert out.eq(1).all()


def test_what_was_noted_can_be_timed() -> None:
    x, out = torch.zeros(64), torch.zeros(64)
    with recorded_launches(Autotuner) as launches:
        Autotuner().run(x, out, 64, stream=0)
    out.zero_()
    (found,) = time_cases(launches, CPU)
    assert not found.error and found.us("cold") > 0 and found.us("warm") > 0
    assert out.eq(1).all()
