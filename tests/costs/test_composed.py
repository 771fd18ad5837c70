"""Calls that are made of others."""

import numpy as np

from foretrace.costs.composed import parts_of
from foretrace.costs.device import price_kernels
from foretrace.costs.families import family_of
from foretrace.graph import Graph, Op, OpTable, Tensor
from foretrace.platform.platform import Platform

SCORES = Tensor((16, 8, 256, 256), "float32", device="cuda:0")
SAFE = Op("aten::_safe_softmax", (SCORES, -1), overload="default", outputs=(SCORES,))


def test_every_part_has_a_family():
    assert [part.name for part in parts_of(SAFE) if family_of(part) is None] == []


def test_a_call_of_parts_costs_more_than_its_first_part_and_launches_a_kernel_for_each():
    graph = Graph(ops=OpTable.of([SAFE, parts_of(SAFE)[0]]), device="cuda")
    costs = price_kernels(graph, np.arange(2, dtype=np.int32), Platform.named("h200"))
    composed, plain = (costs.op == row for row in (0, 1))
    assert composed.sum() >= 5 and plain.sum() == 1
    assert costs.typical[composed].sum() > 2 * costs.typical[plain].sum()


def test_a_call_without_tensors_is_left_as_it_is():
    unknown = Op("aten::_safe_softmax")
    assert list(parts_of(unknown)) == [unknown]
