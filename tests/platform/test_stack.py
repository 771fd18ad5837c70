"""Software stacks: what they change of a platform, and where one is taken."""

from __future__ import annotations

from pathlib import Path

import pytest

import foretrace as ft
from foretrace.graph import ForetraceError, Graph, Op, OpTable, Tensor
from foretrace.platform.stack import Stack, find_stack, stacks, widened
from foretrace.transforms.parallel.parallelize import parallelize
from tests.narrowing import present
from tests.transforms.parallel.steps import gpt_step


def gemm() -> Graph:
    square = Tensor((4096, 4096), "bfloat16", "cuda:0")
    return Graph(OpTable.of([Op("aten::mm", (square, square), outputs=(square,))]))


@pytest.mark.parametrize("on", ["h200", "a100"])
def test_gemms_at_half_the_rate_take_twice_as_long(on: str) -> None:
    plain, half = (
        ft.predict(gemm(), on=on, stack=stack).device_active_ms for stack in ("none", Stack("s", "", gemm=0.5))
    )
    assert half == pytest.approx(2 * plain, rel=0.1)


def attention() -> Graph:
    q = Tensor((1, 16, 4096, 128), "bfloat16", "cuda:0")
    lse = Tensor((1, 16, 4096), "float32", "cuda:0")
    args = (q, q, q, None, True, 0.0, True, False)
    call = Op("aten::_scaled_dot_product_cudnn_attention", args, outputs=(q, lse), overload="default")
    return Graph(OpTable.of([call]))


@pytest.mark.parametrize("on", ["h200", "b200"])
def test_attention_has_a_rate_of_its_own_where_its_library_differs_from_that_of_gemms(on: str) -> None:
    def ms(graph: Graph, **fields: float) -> float:
        return present(ft.predict(graph, on=on, stack=Stack("s", "", **fields)).device_active_ms)  # type: ignore[arg-type]

    assert ms(attention(), gemm=0.5) > 1.4 * ms(attention())
    assert ms(attention(), gemm=0.5, attention_rate=1.0) == pytest.approx(ms(attention()), rel=0.1)
    assert ms(gemm(), gemm=0.5, attention_rate=1.0) == pytest.approx(ms(gemm(), gemm=0.5), rel=0.01)
    assert (
        "GEMMs at 0.50 of the modelled rate, attention at 0.80" in Stack("s", "", gemm=0.5, attention_rate=0.8).changes
    )


def test_a_slower_host_and_slower_links_take_longer_and_a_note_says_so() -> None:
    job = parallelize(gpt_step(), data=4)
    stacked = Stack("ours", "made up", host=0.5, links=0.5, spread=0.2)
    plain, slow = (ft.predict(job, on="a100", stack=stack) for stack in ("none", stacked))
    assert slow.step_ms > 1.5 * plain.step_ms
    assert slow.stack == "ours" and plain.stack is None
    assert any("links at 0.50 of the modelled rate, the host 0.50 times as fast" in note for note in slow.notes)
    assert slow.high_ms / slow.step_ms > 1.25 and slow.step_ms / slow.low_ms > 1.25


def test_auto_is_for_jobs_on_devices_that_were_not_measured() -> None:
    a100, h200 = ft.load_platform("a100"), ft.load_platform("h200")
    assert find_stack("auto", h200, 8) is None and find_stack("auto", a100, 1) is None
    assert find_stack("auto", ft.load_platform("a100:hbm=2"), 8) is None
    unknown = present(find_stack("auto", a100, 8))
    assert unknown.changes == "nothing" and unknown.spread > 0.2
    for path in stacks().values():
        shipped = Stack.read(path)
        for device in shipped.devices:
            assert find_stack("auto", ft.load_platform(device), 8) == shipped


def test_without_knowledge_of_the_stack_the_range_is_as_wide_as_published_steps_are_off() -> None:
    job = parallelize(gpt_step(), data=4)
    plain, unknown = (ft.predict(job, on="a100", stack=stack) for stack in ("none", "auto"))
    assert unknown.step_ms == plain.step_ms and unknown.stack == "unknown"
    assert unknown.high_ms > 1.4 * unknown.step_ms and plain.high_ms < unknown.high_ms
    assert any("the software stack of the job is unknown" in note for note in unknown.notes)
    assert ft.predict(gpt_step(), on="a100").stack is None and ft.predict(job, on="h200").stack is None


def test_half_precision_without_fused_attention_is_software_from_before_it() -> None:
    scores = Tensor((8, 512, 512), "float16", "cuda:0")
    ops = [Op("aten::bmm", (scores, scores)), Op("aten::_softmax", (scores, -1, False))]
    old, full = Graph(OpTable.of(ops)), Graph(OpTable.of(ops[:1]))
    a100 = ft.load_platform("a100")
    assert present(find_stack("auto", a100, 8, [old])).name == "megatron-2022"
    assert present(find_stack("auto", a100, 8, [full])).name == "unknown"
    assert present(find_stack("auto", ft.load_platform("h100"), 8, [old])).name == "unknown"


def test_hosts_that_wait_for_what_stages_receive_do_not_run_ahead() -> None:
    job = parallelize(gpt_step(), pipeline=2, microbatches=4)
    free, waiting = (
        ft.predict(job, on="a100", stack=Stack("s", "", blocking_stages=blocking)) for blocking in (False, True)
    )
    assert waiting.step_ms > free.step_ms
    assert any("hosts wait for what pipeline stages receive" in note for note in waiting.notes)


def test_a_stack_has_a_name_or_a_file(tmp_path: Path) -> None:
    Stack("ours", "made up", gemm=0.8).write(tmp_path / "ours.json")
    platform = ft.load_platform("a100")
    assert find_stack(tmp_path / "ours.json", platform, 1) == Stack("ours", "made up", gemm=0.8)
    with pytest.raises(ForetraceError, match=r"there is no stack 'nome'.*none"):
        find_stack("nome", platform, 8)
    (tmp_path / "ours.json").write_text('{"name": "ours", "provenance": "", "attention": "slow"}')
    with pytest.raises(ForetraceError, match="the field 'attention' holds 'slow'"):
        find_stack(tmp_path / "ours.json", platform, 8)


@pytest.mark.parametrize("field", ["gemm", "host", "spread"])
def test_a_number_that_no_stack_has_is_refused(tmp_path: Path, field: str) -> None:
    (tmp_path / "odd.json").write_text(f'{{"name": "odd", "provenance": "damaged", "{field}": 2147483648}}')
    with pytest.raises(ForetraceError, match=f"the field '{field}' holds 2.147e[+]09"):
        Stack.read(tmp_path / "odd.json")


def test_the_spread_of_published_steps_widens_a_range() -> None:
    low, high = widened(100.0, 99.0, 101.0, 0.1)
    assert low == pytest.approx(88, abs=1) and high == pytest.approx(114, abs=1)
    assert widened(100.0, 90.0, 110.0, 0.0) == pytest.approx((90.0, 110.0))
