"""What got slower."""

import json

from foretrace.analysis.compare import compare_steps
from foretrace.analysis.measure import measure_step
from foretrace.graph import Graph
from tests.analysis.builders import Call, job, launch, rank


def step(mm_us: float, *others: Call) -> Graph:
    return rank(Call("aten::mm", 0, 10), launch(2, 4, (5, 5 + mm_us), name="sgemm"), *others)


def test_the_largest_slow_down_comes_first() -> None:
    before = measure_step(job(step(1000, Call("aten::relu", 20, 90))))
    after = measure_step(job(step(3000, Call("aten::relu", 20, 30))))
    found = compare_steps(before, after)
    assert [row.name for row in found.by_op] == ["aten::mm", "aten::relu"]
    assert found.by_op[0].device_ms == (1.0, 3.0)
    assert round(found.by_op[1].change_ms, 6) == -0.06


def test_ops_that_came_and_went_are_named() -> None:
    before, after = (
        measure_step(job(step(10, Call("aten::relu", 20, 30)))),
        measure_step(job(step(10, Call("aten::gelu", 20, 30)))),
    )
    found = compare_steps(before, after)
    assert (found.new, found.gone) == (["aten::gelu"], ["aten::relu"])


def test_families_and_phases_are_compared_too() -> None:
    found = compare_steps(measure_step(job(step(1000))), measure_step(job(step(1500))))
    assert found.by_family[0].name == "matrix product" and found.by_family[0].change_ms == 0.5
    assert found.by_phase[0].name == "forward"


def test_a_difference_is_plain_data() -> None:
    json.dumps(compare_steps(measure_step(job(step(1))), measure_step(job(step(2)))).to_dict(), allow_nan=False)
