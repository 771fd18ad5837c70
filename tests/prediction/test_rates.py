from __future__ import annotations

import pytest

import foretrace as ft
from foretrace.graph import Graph, Op, OpTable, Tensor
from foretrace.prediction.rates import roofline
from tests.narrowing import present
from tests.report.steps import sketched


def test_calls_of_one_name_and_shapes_are_told_together_the_longest_first():
    found = present(roofline(present(ft.predict(sketched(), on="h200").workings)))
    product = next(alike for alike in found.calls if alike.op.name == "aten::mm")
    assert len(product.us) == 40 and product.flops == 2 * 1024**3 and product.rate == "bfloat16"
    spent = [sum(alike.us) for alike in found.calls]
    assert spent == sorted(spent, reverse=True)


def test_no_call_is_faster_than_its_roof():
    found = present(roofline(present(ft.predict(sketched(), on="h200").workings)))
    product = next(alike for alike in found.calls if alike.op.name == "aten::mm")
    assert product.least_us == pytest.approx(product.flops / found.peaks["bfloat16"] / 1e6)
    assert all(alike.least_us <= min(alike.us) for alike in found.calls)


def test_what_a_custom_lookup_reads_of_its_table_is_not_known_so_that_no_bandwidth_is_said_of_it():
    ids, made = Tensor((768,), "int64", "cuda:0", id=1, storage=1), Tensor((128, 48), "float32", "cuda:0", id=2)
    table = Tensor((640_649_648,), "float32", "cuda:0", id=0, storage=0)
    lookup = Op("fbgemm::split_embedding_codegen_lookup_adagrad_function", (table, ids), outputs=(made,))
    product = Op("aten::mm", (made, Tensor((48, 48), "float32", "cuda:0", id=3)), outputs=(made,))
    forecast = ft.predict(Graph(OpTable.of([lookup, product])), on="h200")
    found = present(roofline(present(forecast.workings)))
    assert [alike.op.name for alike in found.calls] == ["aten::mm"]
    assert forecast.gbps is None
