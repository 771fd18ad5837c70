"""The README of a benchmark: how it was made, and how it is used."""

from __future__ import annotations

from pathlib import Path

from foretrace import __version__
from foretrace.replay.plan import Plan
from foretrace.replay.texts import sentence

README = """# A training step as a benchmark

Made by Foretrace {version}{source}: {calls:,} calls of the step in their order, {inputs:,} tensors that were there
before it{whose}. No model code and no data: inputs are made up like the original's.
{stand_ins}
    python run.py                # times it; needs torch, and nothing else
    python run.py --json
    python run.py --no-pace      # as fast as the host can: what the device could do
    python run.py --device cpu   # elsewhere than it was recorded

| file | holds |
| --- | --- |
| `{folder}step.py` | the step, one line a call; edit it as you like |
| `{folder}inputs.py` | what is there before the step: sizes, and what the values are like |
| `{folder}calls.json` | what each call made and took, for stand-ins and coverage |
| `{folder}original.json` | what the original measured, for the comparison |
| `harness/` | what runs all this |

`pace(12.3)` in `step.py`: the original's host took 12.3 microseconds from the last such line to here, in calls,
modules, autograd and Python. What a replay takes less than that, it waits.

{notes}"""

RANKS = """
## Ranks

    python run.py                        # starts all {world} ranks on this machine
    torchrun --nproc-per-node {world} run.py   # the same; over several machines with torchrun's own options
    python run.py --alone 0              # one rank, whose collectives move nothing

Collectives are real: gloo between CPUs, nccl between GPUs. `ranks.json` says which groups there are, and in which
folder the files of each rank lie: those that are alike are there once.
"""


def about(plan: Plan, stand_ins: int, source: str, ranks: int = 1) -> str:
    """The README of a benchmark; of one of several ranks, with the plan of the first.

    Parameters
    ----------
    plan
        What the benchmark consists of.
    stand_ins
        How many of its calls can't be made.
    source
        What it was made from; empty where nobody shall know.
    ranks
        How many ranks it has.
    """
    text = README.format(
        version=__version__,
        source=f" from {sentence(Path(source).as_posix())}" if source else "",
        calls=len(plan.recorded),
        inputs=len(plan.inputs),
        whose=f", on rank {plan.rank} of {ranks}" if ranks > 1 else "",
        folder="rank-N/" if ranks > 1 else "",
        stand_ins=f"\n{stand_ins:,} calls can't be made; stand-ins take their place.\n" if stand_ins else "",
        notes="".join(f"- {sentence(note)}\n" for note in plan.notes),
    )
    return text + RANKS.format(world=ranks) if ranks > 1 else text
