"""Ops of two steps matched by module, name and position."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from foretrace.analysis.compare import MatchedChange, StepDifference, compare_steps
from foretrace.analysis.measure import measure_step
from foretrace.analysis.op_matching import common_subsequence
from foretrace.graph import Graph
from foretrace.graph.tables import COLLECTIVE
from tests.analysis.builders import Call, Runtime, job, launch, rank


def step(*ops: str | tuple[str, Mapping[str, object]], kernel: str = "kernel_of_{}", us: float = 100.0) -> Graph:
    """Ops in a row that launch a kernel each, of ``us`` microseconds; ``{"us": 0}`` launches none."""
    events: list[Call | Runtime] = []
    for at, op in enumerate(ops):
        name, more = (op, {}) if isinstance(op, str) else (op[0], dict(op[1]))
        length, begin = float(str(more.pop("us", us))), 1000.0 * at
        called, kind = str(more.pop("kernel", kernel)).format(name), more.pop("device_kind", 0)
        if name:
            events.append(Call(name, begin, begin + 20, **more))  # type: ignore[arg-type]
        if length:
            events.append(
                launch(begin + 5, begin + 10, (begin + 12, begin + 12 + length), name=called, device_kind=kind)
            )
    return rank(*events)


def differing(before: Graph, after: Graph) -> StepDifference:
    return compare_steps(measure_step(job(before)), measure_step(job(after)))


def replaced(difference: StepDifference) -> list[MatchedChange]:
    rows = [row for row in difference.matched if row.places]
    for side in (0, 1):  # nothing is lost or counted twice
        assert sum(r.device_ms[side] for r in difference.matched) == pytest.approx(
            sum(r.device_ms[side] for r in difference.by_op)
        )
        assert sum(r.host_ms[side] for r in difference.matched) == pytest.approx(
            sum(r.host_ms[side] for r in difference.by_op)
        )
        assert sum(r.count[side] for r in difference.matched) == sum(r.count[side] for r in difference.by_op)
    return rows


LAYER = ["aten::native_layer_norm", "aten::addmm", "ATTENTION", "aten::addmm", "aten::add", "aten::gelu", "aten::addmm"]


def layers(attention: list[str], count: int = 4) -> list[str]:
    return [op for _ in range(count) for name in LAYER for op in (attention if name == "ATTENTION" else [name])]


def test_attention_by_three_ops_is_held_against_the_fused_one() -> None:
    unfused = step(*layers(["aten::bmm", "aten::_softmax", "aten::bmm"]))
    fused = step(*layers(["aten::_flash_attention_forward"]))
    (row,) = replaced(differing(unfused, fused))
    assert (row.before, row.after) == (["aten::bmm", "aten::_softmax"], ["aten::_flash_attention_forward"])
    assert (row.places, row.count, row.how, row.phase) == (4, (12, 4), "position", "forward")
    assert row.device_ms == pytest.approx((1.2, 0.4))


def test_the_other_way_round_is_the_same() -> None:
    unfused = step(*layers(["aten::bmm", "aten::_softmax", "aten::bmm"]))
    fused = step(*layers(["aten::_flash_attention_forward"]))
    (row,) = replaced(differing(fused, unfused))
    assert row.device_ms == pytest.approx((0.4, 1.2)) and row.change_ms > 0


def test_a_fused_optimizer_is_held_against_single_ops() -> None:
    updates = ["aten::mul_", "aten::lerp_", "aten::addcmul_", "aten::sqrt", "aten::addcdiv_"] * 50
    model = layers(["aten::bmm"])
    single = step(*model, *((op, {"phase": "optimizer"}) for op in updates))
    fused = step(*model, ("aten::_fused_adamw_", {"phase": "optimizer", "us": 700}))
    (row,) = replaced(differing(single, fused))
    assert (row.before, row.after) == (updates[:5], ["aten::_fused_adamw_"])
    assert row.device_ms == pytest.approx((25.0, 0.7)) and row.phase == "optimizer" and row.count == (250, 1)


def test_an_optimizer_by_other_ops_is_one_piece_though_both_have_an_op_in_common() -> None:
    model, updates = layers(["aten::bmm"]), ["mul_", "lerp_", "addcmul_", "sqrt", "add_", "addcdiv_"]
    single = [(f"aten::_foreach_{op}", {"phase": "optimizer"}) for op in updates]
    fused = [(op, {"phase": "optimizer"}) for op in ("aten::_foreach_add_", "aten::_fused_adamw_")]
    (row,) = replaced(differing(step(*model, *single), step(*model, *fused)))
    assert row.device_ms == pytest.approx((0.6, 0.2)) and len(row.before) == 6 and len(row.after) == 2


def test_renamed_ops_of_another_vendor_are_the_same_work() -> None:
    model = ["aten::cudnn_convolution", "aten::cudnn_batch_norm", "aten::relu"] * 5
    ours, theirs = step(*model), step(*(op.replace("cudnn", "miopen") for op in model), us=200)
    rows = {tuple(row.before): row for row in replaced(differing(ours, theirs))}
    assert rows[("aten::cudnn_convolution",)].after == ["aten::miopen_convolution"]
    assert rows[("aten::cudnn_batch_norm",)].device_ms == pytest.approx((0.5, 1.0))


def test_renamed_kernels_of_the_same_ops_replace_nothing() -> None:
    ours, theirs = (step(*layers(["aten::bmm"]), kernel=name) for name in ("ampere_{}", "Cijk_{}"))
    assert not replaced(differing(ours, theirs))


def test_kernels_without_ops_are_matched_by_what_they_do() -> None:
    names = ["ampere_sgemm_128x64_tn", "softmax_warp_forward", "elementwise_kernel"] * 4
    others = ["Cijk_Ailk_Bljk_MT64", "softmax_blocked", "elementwise_kernel"] * 4
    ours, theirs = (step(*(("", {"kernel": name}) for name in some)) for some in (names, others))
    rows = {tuple(row.before): row.after for row in replaced(differing(ours, theirs))}
    assert rows == {
        ("ampere_sgemm_128x64_tn",): ["Cijk_Ailk_Bljk_MT64"],
        ("softmax_warp_forward",): ["softmax_blocked"],
    }


def test_compiled_kernels_are_held_against_the_ops_they_were_made_of() -> None:
    eager = step(*["aten::addmm", "aten::add", "aten::gelu", "aten::addmm", "aten::native_layer_norm"] * 6)
    compiled = step(*["aten::addmm", "triton_poi_fused_add_gelu_0", "aten::addmm", "triton_per_fused_layer_norm_1"] * 6)
    rows = {tuple(row.before): row.after for row in replaced(differing(eager, compiled))}
    assert rows[("aten::add", "aten::gelu")] == ["triton_poi_fused_add_gelu_0"]
    assert rows[("aten::native_layer_norm",)] == ["triton_per_fused_layer_norm_1"]


def test_ranks_that_only_one_job_has_share_what_the_others_replace() -> None:
    unfused, fused = layers(["aten::bmm", "aten::_softmax", "aten::bmm"]), layers(["aten::_flash_attention_forward"])
    one, four = (
        measure_step(job(step(*unfused))),
        measure_step(job(*(step(*fused, us=100.0 * n) for n in (1, 2, 3, 4)))),
    )
    (row,) = replaced(compare_steps(one, four))
    assert row.device_ms == pytest.approx((1.2, 1.0)) and row.count == (12, 4)


def test_an_op_that_only_one_step_has_replaces_nothing() -> None:
    difference = differing(step(*layers(["aten::bmm"])), step(*layers(["aten::bmm", "aten::dropout"])))
    assert not replaced(difference) and difference.new == ["aten::dropout"]


def test_a_norm_by_ops_is_one_piece_though_an_op_in_it_follows_too() -> None:
    model = ["aten::mm", "NORM", "aten::add", "aten::mm"] * 3
    parts = ["aten::mean", "aten::sub", "aten::add", "aten::sqrt", "aten::div"]
    single = step(*(op for name in model for op in (parts if name == "NORM" else [name])))
    fused = step(*(name.replace("NORM", "aten::native_layer_norm") for name in model))
    (row,) = replaced(differing(single, fused))
    assert row.before == parts and row.count == (15, 3)


def test_modules_say_what_belongs_together() -> None:
    def model(attention: list[str], prefix: str = "") -> Graph:
        ops = [(module, op) for i in range(3) for module, some in (
            (f"layers.{i}.attn", attention), (f"layers.{i}.mlp", ["aten::mm", "aten::gelu"]))
            for op in some]  # fmt: skip
        return step(*((op, {"module": prefix + module}) for module, op in ops))

    before = model(["aten::mm", "aten::bmm", "aten::_softmax"])
    after = model(["aten::mm", "aten::_flash_attention_forward"], prefix="module.")
    (row,) = replaced(differing(before, after))
    assert (row.where, row.how, row.places) == ("layers.*.attn", "module", 3)
    assert row.before == ["aten::bmm", "aten::_softmax"]


def test_communication_takes_the_place_of_no_compute() -> None:
    model = layers(["aten::bmm"])
    alone, joined = (
        step(*model, "aten::mul", "aten::sum"),
        step(
            *model, ("nccl:all_reduce", {"kernel": "ncclDevKernel_AllReduce", "device_kind": COLLECTIVE}), "aten::sum"
        ),
    )
    assert not replaced(differing(alone, joined))


def test_steps_of_different_models_are_compared_by_name_alone() -> None:
    ours = step(*layers(["aten::bmm"]))
    theirs = step(*["aten::cudnn_convolution", "aten::cudnn_batch_norm", "aten::relu", "aten::max_pool2d"] * 9)
    assert not replaced(differing(ours, theirs))


def test_calls_around_a_replaced_op_go_with_it() -> None:
    def model(*inner: Call | Runtime) -> Graph:
        return rank(
            Call("aten::mm", 0, 20), launch(5, 10, (12, 112), name="gemm"), *inner,
            Call("aten::mm", 500, 520), launch(505, 510, (512, 612), name="gemm"),
            Call("aten::mm", 700, 720), launch(705, 710, (712, 812), name="gemm"),
            Call("aten::relu", 900, 920), launch(905, 910, (912, 999), name="relu"),
        )  # fmt: skip

    fused = model(
        Call("aten::scaled_dot_product_attention", 200, 300), Call("aten::transpose", 210, 220),
        Call("aten::_flash_attention_forward", 230, 290), launch(240, 250, (260, 400), name="flash_fwd"),
    )  # fmt: skip
    single = model(Call("aten::bmm", 200, 220), launch(205, 210, (212, 412), name="gemm"))
    (row,) = replaced(differing(single, fused))
    assert row.host_ms == pytest.approx((0.02, 0.1)) and row.after == ["aten::_flash_attention_forward"]


def test_the_subsequence_is_as_long_as_the_plain_way_finds_it() -> None:
    draw = random.Random(0)
    for _ in range(200):
        a, b = ([draw.choice("abcd") for _ in range(draw.randint(0, 12))] for _ in range(2))
        length = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
        for i, one in enumerate(a):
            for j, other in enumerate(b):
                length[i + 1][j + 1] = length[i][j] + 1 if one == other else max(length[i][j + 1], length[i + 1][j])
        found = common_subsequence(a, b)
        assert len(found) == length[-1][-1] and all(a[i] == b[j] for i, j in found)
        assert found == sorted(found) and len({i for i, _ in found}) == len({j for _, j in found}) == len(found)


def test_long_steps_are_aligned_piece_by_piece() -> None:
    a = [f"op{i % 37}" for i in range(30_000)]
    b = [op for i, op in enumerate(a) if i % 1000 != 7]
    found = common_subsequence(a, b)
    assert len(found) > 0.999 * len(b) and all(a[i] == b[j] for i, j in found)
