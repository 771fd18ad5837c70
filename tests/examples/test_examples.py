from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import bert
import dlrm
import gpt
import resnet

FOLDER = Path(dlrm.__file__).parent

STEPS = {
    "dlrm": lambda: dlrm.make_step(device="cpu"),
    "dlrm with skewed lookups and adagrad": lambda: dlrm.make_step(device="cpu", skew=1.0, optimizer="adagrad"),
    "dlrm mlperf in bf16": lambda: dlrm.make_step("mlperf", batch=16, device="cpu", dtype="bf16", max_rows=1000),
    "gpt": lambda: gpt.make_step(device="cpu"),
    "gpt fused, recomputed, accumulated, in bf16": lambda: gpt.make_step(
        device="cpu", dtype="bf16", optimizer="fused", recompute=True, accumulate=2
    ),
    "gpt in a loop": lambda: gpt.make_step(device="cpu", optimizer="loop"),
    "bert": lambda: bert.make_step(device="cpu"),
    "bert in bf16": lambda: bert.make_step(device="cpu", dtype="bf16", seq=16),
    "resnet": lambda: resnet.make_step(device="cpu"),
    "resnet in bf16, channels last": lambda: resnet.make_step(device="cpu", dtype="bf16", channels_last=True),
}


@pytest.mark.parametrize("name", STEPS)
def test_an_example_learns_its_batch_by_heart(name):
    torch.manual_seed(0)
    step = STEPS[name]()
    first = step().item()
    for _ in range(10):
        last = step().item()
    assert last < first


@pytest.mark.parametrize("script", ["dlrm.py", "gpt.py", "bert.py", "resnet.py"])
def test_an_example_runs_as_a_script_with_no_options(script, run_example):
    assert run_example(script, "--steps", "25").count("ms a step") == 2


@pytest.mark.parametrize("name", ["ddp", "fsdp", "hybrid"])
def test_of_two_ranks_under_torchrun_one_says_how_it_went(name, on_two_ranks):
    assert on_two_ranks(name).with_suffix(".txt").read_text().count("loss") == 1


def test_sizes_are_those_of_the_literature():
    with torch.device("meta"):
        counts: dict[str, torch.nn.Module] = {
            "gpt2": gpt.GPT(gpt.PRESETS["gpt2"], recompute=False),
            "bert-base": bert.BERT(bert.PRESETS["base"]),
            "resnet50": resnet.ResNet(resnet.PRESETS["resnet50"]),
        }
    sizes = {name: sum(p.numel() for p in model.parameters()) for name, model in counts.items()}
    assert sizes["gpt2"] == 124_439_808
    assert sizes["resnet50"] == 25_557_032
    assert sizes["bert-base"] == pytest.approx(110e6, rel=0.01)


def test_no_example_knows_foretrace():
    for script in FOLDER.glob("*.py"):
        assert "foretrace" not in script.read_text().lower(), script


@pytest.mark.parametrize(
    ("skew", "share_of_the_favourite"),
    [(1.0, math.log(2) / math.log(100_000)), (1.2, (1 - 2**-0.2) / (1 - 100_000**-0.2))],
)
def test_skewed_lookups_follow_the_power_law(skew, share_of_the_favourite):
    torch.manual_seed(0)
    ids = dlrm.row_ids(100_000, 100_000, skew)
    assert 0 <= ids.min() <= ids.max() < 100_000
    assert ids.bincount().max().item() / 100_000 == pytest.approx(share_of_the_favourite, rel=0.05)


def test_uniform_lookups_have_no_favourites():
    torch.manual_seed(0)
    assert dlrm.row_ids(100_000, 100_000, skew=0.0).bincount().max() < 15
