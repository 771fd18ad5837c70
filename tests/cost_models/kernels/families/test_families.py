import gzip
import math
import re
import sys
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest

from foretrace.cost_models.kernels.families import CLASSES, DRAWN, FAMILIES, CallContext, case_number, family_of
from foretrace.cost_models.kernels.roofline import Work, work_of
from foretrace.graph import Constant, Op, Tensor, Value
from foretrace.graph.codec import from_lines
from foretrace.platform.device import Device
from foretrace.platform.measurements.cases import Draw

H200 = Device.named("h200")
RECORDED = sorted((Path(__file__).parents[3] / "data" / "h200").glob("*.ops.jsonl.gz"))


def recorded_ops() -> list[Op]:
    return [op for path in RECORDED for op in from_lines(gzip.open(path, "rt"), str(path))]


def check(op: Op) -> None:
    family = family_of(op)
    if family is None:
        return
    features, work = family.describe(op, CallContext(H200))
    assert len(features) == len(family.columns), op
    assert all(math.isfinite(value) for value in features), op
    assert work.us(H200) >= 0, op


def messed(value: Value, random: Random) -> Value:
    """An argument as a poorer source would have it, or an odd but legal one."""
    chance = random.random()
    if chance < 0.06:
        return None
    if isinstance(value, Tensor) and chance < 0.3:
        return random.choice([Tensor((), value.dtype), Tensor((0,) * len(value.shape), value.dtype),
                              Tensor(value.shape, value.dtype), Tensor(value.shape, "unheard_of", layout="sparse_coo"),
                              Tensor(value.shape[:1], value.dtype)])  # fmt: skip
    if isinstance(value, list):
        return tuple(messed(one, random) for one in value) if chance < 0.5 else [] if chance < 0.55 else value
    return random.choice([0, 1, -1, True]) if isinstance(value, int) and chance < 0.12 else value


def test_every_family_is_documented(request):
    page = (request.config.rootpath / "docs" / "calibrate.md").read_text()
    assert [name for name in FAMILIES if f"`{name}`" not in page] == []


@pytest.mark.parametrize("name", FAMILIES)
def test_the_pattern_of_a_family_finds_all_its_ops(name: str):
    pattern = CLASSES[name][1]
    assert [op for op in FAMILIES[name].ops if not re.search(pattern, op)] == []


def test_every_recorded_call_of_a_family_is_described():
    ops = recorded_ops()
    assert len(ops) > 1000
    for op in ops:
        check(op)


def test_no_call_however_poor_its_arguments_raises():
    random = Random(0)
    for op in recorded_ops()[::5]:
        if getattr(family_of(op), "name", "matrix") != "matrix":
            args = tuple(messed(argument, random) for argument in op.args)
            check(Op(op.name, args[: random.randint(0, len(args) + 3)], op.kwargs, overload=op.overload))


def test_calls_that_differ_in_where_an_argument_stands_are_the_same():
    x = Tensor((64, 32), "float32")
    placed, named = Op("aten::sum", (x, [1])), Op("aten::sum", (x,), {"dim": [1]})
    family = FAMILIES["reductions"]
    assert family.describe(placed, CallContext(H200)) == family.describe(named, CallContext(H200))


@pytest.mark.parametrize("name", DRAWN)
def test_a_family_has_ops_and_distinct_columns_and_what_it_draws_is_covered_once(name: str):
    assert FAMILIES[name].ops
    assert len(set(FAMILIES[name].columns)) == len(FAMILIES[name].columns)
    for number in range(60):
        op = case_number(name, number, most=2**20, kind="cuda").op
        assert sum(family.matches(op) for family in FAMILIES.values()) == 1


def test_a_roofline_is_the_slowest_of_arithmetic_traffic_and_waiting():
    flops, moved, waited = Work(flops=1e12), Work(bytes=1e9), Work(round_trips=1e4)
    together = Work(1e12, 1e9, round_trips=1e4)
    assert together.us(H200) == max(work.us(H200) for work in (flops, moved, waited))


def test_a_constant_among_the_arguments_is_no_list():
    op = Op("aten::_to_copy", (Tensor((4,), "float32"),), {"dtype": Constant("dtype", "bfloat16")})
    check(op)
    assert family_of(op) is FAMILIES["copies"]


def test_the_family_that_contributors_are_shown_works_as_it_stands(request, monkeypatch):
    torch = pytest.importorskip("torch")
    from foretrace.calibration.timing.call import Call

    guide = (request.config.rootpath / "CONTRIBUTING.md").read_text()
    source, its_test = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    module = ModuleType("foretrace.cost_models.kernels.families.distances")
    exec(source, vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    tests: dict[str, Any] = {}
    exec(its_test, tests)
    tests["test_longer_rows_take_more_arithmetic_for_as_many_distances"]()
    family, random = module.Distances(), Random(0)
    for number in range(30):
        case = family.case(Draw(str(number), most=2**12, kind="cpu"))
        assert family.matches(case.op)
        Call(case, torch.device("cpu"))()
        poor = Op(case.op.name, tuple(messed(argument, random) for argument in case.op.args))
        for op in (case.op, poor) if family.matches(poor) else (case.op,):
            features, work = family.describe(op, CallContext(H200))
            assert len(features) == len(family.columns) and all(map(math.isfinite, features))
            assert work.us(H200) >= 0


def test_a_product_with_a_sparse_matrix_is_no_gemm():
    edges, features = (
        Tensor((10_000, 10_000), "float32", layout="sparse_csr", stored=50_000),
        Tensor((10_000, 8), "float32"),
    )
    assert family_of(Op("aten::mm", (edges, features))) is None
    assert work_of(Op("aten::mm", (edges, features), outputs=(features,))).flops == 2 * 50_000 * 8
    update = Op("aten::add_", (features, Tensor((10_000, 8), "float32", layout="sparse_coo")))
    assert family_of(update) is not None
