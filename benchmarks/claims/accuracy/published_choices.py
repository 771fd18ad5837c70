"""Claim: `foretrace advise` knows how torchtitan and Megatron train Llama 3 on H100s; its pick is predicted no slower.

The parallelism that torchtitan's authors published with their measurements (8B on 8 and 128 GPUs, 70B on 256, 405B on
512), and NVIDIA with Megatron Bridge's recipes in bfloat16 (8B on 8, 70B on 64), is among the plans of the search
(``listed``). The pick, for as many samples in a step, has at most the predicted time of theirs (``slower`` is how far
it is above; ``theirs GiB`` what theirs reserves, and ``theirs fits`` whether that fits: a pick always does).
Torchtitan's are in bfloat16 and compiled where published in float8, which no plan offers; element-wise calls fused
stand for the compiler. Each is of the program that its authors trained: kernels of Megatron and TransformerEngine keep
less for backward than torchtitan's calls.

    python -m benchmarks.claims.accuracy.published_choices [NAME…]
"""

from __future__ import annotations

import gc
import sys
import time
from contextlib import suppress
from typing import Any, NamedTuple

from benchmarks.lib.published_steps import MODELS
from benchmarks.lib.table import keep
from foretrace.api import read
from foretrace.platform.registry import load_platform
from foretrace.whatif.plan_search import Search
from foretrace.whatif.plan_simulator import Simulator
from foretrace.whatif.plans import factors_of, settings
from foretrace.whatif.what_if import one_step

ON = "h100-hbm2e"
FIXED = ("mixed=on",)
"""What all plans have: float32 weights and optimizer states, as torchtitan's."""
SECONDS = 1200
"""Of processor time for a search, after which its best so far counts: ten minutes of two cores."""
TORCHTITAN, MEGATRON = "llama.py", "megatron_llama.py --seq 8192"


class Published(NamedTuple):
    """How a model was trained."""

    preset: str
    world: int
    samples: int
    choice: str
    on: str = ON
    program: str = TORCHTITAN


CHOICES = {
    "8B on 8": Published("8b", 8, 16, "data=8 sharded=on mixed=on checkpoint=selective fuse=elementwise"),
    "8B on 128": Published("8b", 128, 256, "data=128 sharded=on mixed=on checkpoint=selective fuse=elementwise"),
    "70B on 256": Published(
        "70b", 256, 512, "data=32 tensor=8 sequence=on overlap=on sharded=on mixed=on checkpoint=* fuse=elementwise"
    ),
    "405B on 512": Published(
        "405b", 512, 256,
        "data=8 tensor=8 sequence=on overlap=on pipeline=8 microbatches=32 schedule=interleaved chunks=2 sharded=on "
        "mixed=on checkpoint=* fuse=elementwise",
    ),
    "Megatron's 8B on 8": Published(
        "8b", 8, 128, "data=4 context=2 microbatches=32 zero1=on mixed=on fuse=elementwise", "h100",
        MEGATRON,
    ),
    "Megatron's 70B on 64": Published(
        "70b", 64, 256,
        "data=2 tensor=4 context=2 sequence=on overlap=on pipeline=4 microbatches=128 schedule=interleaved chunks=5 "
        "zero1=on mixed=on fuse=elementwise",
        "h100", MEGATRON,
    ),
}  # fmt: skip
"""Tables 1, 3, 4 and 5 of the published ones; and the recipes for H100s in bfloat16."""


class TimeUpError(Exception):
    """The processor time of a search is spent."""


def searched(search: Search, seconds: float) -> None:
    """Run a search until its end, or for so much processor time."""
    begun = time.process_time()

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)
        if time.process_time() - begun > seconds:
            raise TimeUpError

    with suppress(TimeUpError):
        search.run(say=say)


def row(name: str, one: Published) -> dict[str, Any]:
    """A published choice, and what the search picks for as many samples."""
    begun = time.process_time()
    batch = one.samples // int(settings(one.choice.split())["data"])
    job = one_step(read(f"python {MODELS}/{one.program} --preset {one.preset} --batch {min(batch, 2)}", "cuda"))
    simulator = Simulator(job, one.on)
    factors = factors_of(job, one.world, one.samples)
    search = Search(job, load_platform(one.on), one.world, simulator.points, fixed=FIXED, factors=factors)
    wanted = settings([*one.choice.split(), f"batch={batch}"])
    theirs = next((plan for plan in search.space if settings(plan) == wanted), None)
    searched(search, SECONDS)
    pick, count = next(iter(search.ranked()), None), search.simulated
    found: dict[str, Any] = {
        "model": name, "plans": len(search.space), "simulated": count, "listed": theirs is not None,
        "pick": " ".join(pick or ()), "pick us": None, "theirs us": None, "slower": None,
        "theirs GiB": None, "theirs fits": None, "CPU s": time.process_time() - begun,
    }  # fmt: skip
    if pick is not None:
        found["pick us"] = (search.points[pick].next_ms or 0) * 1e3 / one.samples
    if theirs is not None:
        if theirs not in search.points:
            (search.points[theirs],) = simulator.points([theirs], False)
        point = search.points[theirs]
        found["theirs us"] = (point.next_ms or 0) * 1e3 / one.samples or None
        found |= {"theirs GiB": (point.reserved_bytes or 0) / 2**30, "theirs fits": search.fits(theirs)}
        if found["pick us"] and found["theirs us"]:
            found["slower"] = found["pick us"] / found["theirs us"] - 1
    return found


def main() -> int:
    gc.disable()
    names = sys.argv[1:] or list(CHOICES)
    rows = []
    for name in names:
        rows.append(row(name, CHOICES[name]))
        print(rows[-1], file=sys.stderr, flush=True)
    missed = [r["model"] for r in rows if not r["listed"] or r["slower"] is None or r["slower"] > 0]
    if len(names) == len(CHOICES):
        keep("published_choices", rows, verdict=f"Does not hold for {', '.join(missed)}" if missed else None)
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
