"""Repeated blocks, by the names of modules."""

from __future__ import annotations

from collections.abc import Iterable

from foretrace.graph import Op
from foretrace.transforms.blocks import all_repeated_blocks, repeated_blocks


def forward(*modules: str, calls: Iterable[str] = ("aten::addmm", "aten::gelu")) -> list[Op]:
    return [Op(name, phase="forward", module=module) for module in modules for name in calls]


def test_a_number_at_the_end_of_a_name_tells_brothers_apart() -> None:
    layers = [f"ViT.encoder.layers.encoder_layer_{number}" for number in range(3)]
    inner = [f"{layer}.mlp.{number}" for layer in layers for number in (0, 3)]
    assert repeated_blocks(forward("ViT.conv_proj", *inner)) == layers


def test_stages_that_happen_to_call_the_same_are_no_blocks() -> None:
    first = forward("R.layer1.0", "R.layer1.1", "R.layer1.2")
    second = forward(*(f"R.layer2.{number}" for number in range(5)))
    third = forward("R.layer3.0", "R.layer3.1", calls=["aten::mm"])
    last = forward("R.layer4.0", "R.layer4.1", "R.layer4.2")
    ops = [*first, *second, *third, *last]
    assert repeated_blocks(ops) == [f"R.layer2.{number}" for number in range(5)]
    assert len(all_repeated_blocks(ops)) == 3 + 5 + 2 + 3


def test_numbers_inside_of_blocks_do_not_count() -> None:
    ops = forward(*(f"net.0.blocks.{number}.mlp.{layer}" for number in range(4) for layer in (0, 2)))
    assert repeated_blocks(ops) == all_repeated_blocks(ops) == [f"net.0.blocks.{number}" for number in range(4)]


def test_a_model_that_repeats_nothing_has_no_blocks() -> None:
    assert repeated_blocks(forward("net.up", "net.down")) == all_repeated_blocks(forward("net.up")) == []
