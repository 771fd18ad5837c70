"""What every example needs: the common options, autocast, and a loop that trains and prints."""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

import torch
import torch.distributed as dist

Step = Callable[[], torch.Tensor]
"""One training step on a fixed batch: returns the loss, without waiting for it."""

Preset = TypeVar("Preset")

DEVICE = f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"
"""This rank's own GPU where there is one."""


def options(doc: str | None, presets: Iterable[str]) -> argparse.ArgumentParser:
    """A parser with the options that all examples share. What nobody gives is left out, for `make_step` to know."""
    parser = argparse.ArgumentParser(
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--preset", choices=list(presets), help="size of the model; tiny where there is no GPU")
    parser.add_argument("--batch", type=int, help="samples a step and rank; each preset has its own")
    parser.add_argument("--device", help=f"here {DEVICE}")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], help="bf16 is autocast")
    return parser


def choose(presets: Mapping[str, Preset], name: str | None, device: str) -> Preset:
    """The preset of that name; without one the tiny one on a CPU, and the next on a GPU.

    >>> choose({"tiny": 1, "large": 2}, None, "cpu")
    1
    """
    tiny, usual, *_ = presets
    chosen = name or (tiny if device == "cpu" else usual)
    if chosen == tiny:
        torch.set_num_threads(1)  # so small a step takes no less time on several, and much more where others are busy
    return presets[chosen]


def autocast(device: str, dtype: str) -> contextlib.AbstractContextManager[object]:
    """Matrix products in bf16, or nothing at all."""
    if dtype == "fp32":
        return contextlib.nullcontext()
    return torch.autocast(torch.device(device).type, torch.bfloat16)


@contextlib.contextmanager
def process_group(device: str) -> Iterator[None]:
    """The process group of a script that torchrun started: nccl between GPUs, gloo between CPUs."""
    if device != "cpu":
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if device == "cpu" else "nccl")
    try:
        yield
    finally:
        dist.destroy_process_group()


def train(step: Step, steps: int) -> None:
    """Take the steps, saying now and then where the loss is and what a step takes."""
    for done in range(0, steps, 20):
        count = min(20, steps - done)
        began = time.perf_counter()
        for _ in range(count):
            loss = step()
        value = loss.item()  # waits for the device
        took = (time.perf_counter() - began) / count
        if os.environ.get("RANK", "0") == "0":
            print(f"step {done + count:4d}  loss {value:.4f}  {took * 1e3:.2f} ms a step", flush=True)
