"""FSDP2 over another number of ranks: compared with FSDP2."""

from __future__ import annotations

import pytest

from foretrace.graph import ForetraceError
from foretrace.record.sketch.sketch import sketch
from foretrace.transforms.parallel.fsdp_reshard import shards
from tests.transforms.agreement import assert_same
from tests.transforms.parallel.steps import exchanged, gpt_step


@pytest.mark.parametrize(("old", "new"), [(8, 64), (64, 8), (8, 3)])
def test_a_step_in_other_shards_is_fsdps_to_the_last_byte(old: int, new: int) -> None:
    made, truth = shards(gpt_step(old, fsdp=True), new), gpt_step(new, fsdp=True)
    assert_same(made, truth)
    assert exchanged(made) == exchanged(truth)


def test_numbers_among_the_arguments_follow() -> None:
    made, truth = shards(gpt_step(8, fsdp=True), 3), gpt_step(3, fsdp=True)
    counting = ("aten::empty", "aten::view", "aten::as_strided", "storage::resize_")
    for ours, theirs in zip(made.ops, truth.ops):
        if ours.name in counting:
            assert [a for a in ours.args if isinstance(a, (int, list))] == [
                a for a in theirs.args if isinstance(a, (int, list))
            ]
        if ours.name.startswith("fsdp::"):
            assert ours.args[2:] == theirs.args[2:]


@pytest.mark.parametrize("mixed", [False, True])
def test_shards_of_another_precision_follow_too(mixed: bool) -> None:
    assert_same(shards(half(8, mixed), 2), half(2, mixed))


def half(world: int, mixed: bool):
    """A small model in bfloat16, its shards in float32 where that is mixed."""
    import torch
    from torch import nn
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    def build():
        with torch.device("cuda"):
            model, given = nn.Sequential(nn.Linear(64, 130), nn.Linear(130, 64)), torch.randn(8, 64)
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        fully_shard(model, **({"mp_policy": policy} if mixed else {}))
        update = torch.optim.AdamW(model.parameters())

        def step():
            update.zero_grad()
            model(given).square().mean().backward()
            update.step()

        return step

    return sketch(build, device="cuda", world=world)


def test_a_step_without_shards_is_refused() -> None:
    with pytest.raises(ForetraceError, match="no sharded weights"):
        shards(gpt_step(), 8)
