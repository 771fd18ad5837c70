"""Fit the shipped software stacks on every second row of published tables: platform/data/stacks/*.json.

    python -m benchmarks.fit.make_stacks [torch-2.6 megatron-2022 megatron-te]

The other rows are scored by the claim `published_steps`. Of vTrain only rows of one node are fitted on.
"""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from typing import Any

from benchmarks.lib.published_steps import PublishedStep, is_fitted, published
from foretrace.platform.stack import STACKS, Stack
from foretrace.whatif import step_table

BETWEEN_CLUSTERS = 0.1
"""Standard deviation of the logarithm between clusters with the same GPU and software, beside that of the fit."""
KNOWN: dict[str, tuple[str, str, dict[str, Any]]] = {
    "torch-2.6": (
        "torchtitan",
        "Llama 3.1 8B on 8 and 128 H100 (pytorch/torchtitan, December 2024)",
        {"attention": "flash", "devices": ("h100-hbm2e",)},
    ),
    "megatron-2022": (
        "vtrain single_node",
        "GPT on 2 to 8 A100 out of vTrain's table (VIA-Research/vTrain f8dda847)",
        {"devices": (), "unfused_attention": ("a100", "a100-40gb", "a100-pcie", "a100-pcie-40gb")},
    ),
    "megatron-te": (
        "simumax",
        "Llama 3 on 8 B200 (MooreThreads/SimuMax 4dcaae51)",
        {"devices": ("b200",)},
    ),
}
"""Each stack: the rows that it is fitted on, what they are, and what is known of it."""


def fitted(name: str) -> Stack:
    source, what, known = KNOWN[name]
    rows: list[PublishedStep] = [one for one in published() if one.source == source and is_fitted(one)]
    subjects = []
    for one in rows:
        print(one.name, flush=True)
        subjects.append(step_table.TableStep(one.row))
    if attention := known.get("attention"):
        for subject in subjects:
            device = replace(subject.platform.device, attention=str(attention))
            subject.platform = replace(subject.platform, device=device)
    stack = step_table.fit_stack(subjects, name, f"fitted on {len(rows)} steps of {what}")
    spread = round(math.hypot(stack.spread, BETWEEN_CLUSTERS), 4)
    return replace(stack, spread=spread, **known)


def main() -> None:
    for name in sys.argv[1:] or KNOWN:
        stack = fitted(name)
        stack.write(STACKS / f"{name}.json")
        print(stack)


if __name__ == "__main__":
    main()
