"""Compiled kernels are priced by what they walk over."""

from __future__ import annotations

import math

import pytest

from foretrace.cost_models.kernels.families import FAMILIES, CallContext, family_of
from foretrace.cost_models.kernels.families.compiled import Compiled, kernel_work
from foretrace.graph import Op, Tensor, Value
from foretrace.platform.device import Device

FACTS = CallContext(Device.named("h200"))
X = Tensor((4096, 768), "float32", stride=(768, 1))
TABLE = Tensor((50257, 768), "float32", stride=(768, 1))
COMPILED = Compiled()


def kernel(name: str, *args: Value) -> Op:
    return Op(name, (*args, 0))


@pytest.mark.parametrize("name", ["triton_poi_fused_add_0", "my_kernel", "mine::fused", "fbgemm::some"])
def test_what_is_not_pytorchs_own_is_its_business(name: str) -> None:
    assert family_of(Op(name, (X,))) is FAMILIES["compiled"]


@pytest.mark.parametrize("op", [Op("aten::cholesky", (X,)), Op("triton_poi_fused_add_0")])
def test_calls_of_pytorch_and_kernels_without_tensors_are_not(op: Op) -> None:
    assert family_of(op) is None


def test_the_stream_is_no_loop() -> None:
    op = Op("triton_red_fused_sum_0", (X, 24576, 128, 140_000_000_000))
    assert kernel_work(op, [X]).elements == 24576 * 128


def test_of_a_table_only_the_rows_that_are_walked_over_count() -> None:
    looked_up = COMPILED.describe(kernel("triton_per_fused_embedding_0", X, TABLE, 4096, 768), FACTS)
    assert looked_up.work.bytes == 2 * X.nbytes


def test_each_feature_has_a_name() -> None:
    described = COMPILED.describe(kernel("triton_poi_fused_gelu_0", X, X, X.numel), FACTS)
    assert len(described.features) == len(COMPILED.columns)


def test_accesses_that_no_source_tells_of_are_taken_for_rows() -> None:
    told = {"accessed": [X.numel] * 2, "fetched": [X.numel] * 2, "rows": X.numel, "along": 1, "instructions": 1,
            "read": X.numel, "written": X.numel, "read_sectors": X.numel // 8, "written_sectors": X.numel // 8,
            "loads": 1, "stores": 1, "tiled": 1, "inner": 0, "reductions": 0, "indirect": 0}  # fmt: skip
    name, args = "triton_poi_fused_add_0", (X, X, X.numel, 0)
    assert kernel_work(Op(name, args, told), [X, X]) == kernel_work(Op(name, args), [X, X])  # type: ignore[arg-type]


def test_a_damaged_recording_of_a_kernel_is_described_too() -> None:
    damaged = {"accessed": [1, 1], "fetched": [1, 1], "rows": 8, "along": 1, "read_sectors": -(2**40), "loads": -1}
    described = COMPILED.describe(Op("triton_poi_fused_add_0", (X, X, 8, 0), damaged), FACTS)  # type: ignore[arg-type]
    assert all(map(math.isfinite, described.features))


def test_only_names_of_the_compiler_tell_anything() -> None:
    assert COMPILED.is_guess(kernel("my_kernel", X)) and not COMPILED.is_guess(kernel("triton_poi_fused_add_0", X))


@pytest.mark.parametrize(
    ("name", "like"),
    [("triton_poi_fused_add_0", "relu"), ("triton_poi_fused_gelu_0", "gelu"), ("triton_per_fused_norm_0", "sum")],
)
def test_a_stand_in_moves_as_many_bytes(name: str, like: str) -> None:
    op = kernel(name, X, X, 4096, 768)
    other = COMPILED.proxy(op)
    family = family_of(other)
    assert other.name == f"aten::{like}" and family is not None
    moved = family.describe(other, FACTS).work.bytes
    assert moved == pytest.approx(COMPILED.describe(op, FACTS).work.bytes, rel=0.01)
