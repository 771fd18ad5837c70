"""One rank of distributed jobs that train on CPUs; `benchmarks.truth.gloo_truth` starts as many as a job has, and tells
them

- ``wait``: for each other;
- ``make``: all jobs, so that none is recorded with more memory or less around it than it is timed with;
- ``fabric``: measure what exchanges between them take, into ``OUT/platform-WORLD``;
- ``record JOB NUMBER``: record a job into ``OUT/JOB-WORLD/recording-NUMBER``;
- ``time JOB``: add its steps, timed with nothing attached, to ``OUT/JOB-WORLD/timed.json``.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import dlrm_distributed
import gpt
from benchmarks.truth.gloo_turns import turns
from foretrace.calibration.machine import calibrate
from foretrace.record.watch.session import record_step

Step = Callable[[], torch.Tensor]
WARM_UP, PLAIN, PROFILED = 2, 6, 3
"""Steps of a recording."""
FIRST, STEPS = 3, 6
"""Those before anything is measured, and those that are timed in a turn."""
SMALL_GPT = gpt.Shape(layers=4, heads=4, dim=256, vocabulary=4096, seq=128, batch=2)


def hybrid_dlrm() -> Step:
    """Tables on one rank each, MLPs on all: all_to_all and all_reduce."""
    return dlrm_distributed.make_step("mlperf", batch=256, device="cpu", skew=1.05, max_rows=100_000)


def ddp_mlp() -> Step:
    """Eight linear layers, replicated: all_reduce in buckets while backward goes on."""
    layers = [layer for _ in range(8) for layer in (nn.Linear(768, 768), nn.ReLU())]
    model = DistributedDataParallel(nn.Sequential(*layers, nn.Linear(768, 16)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    given, wanted = torch.randn(256, 768), torch.randn(256, 16)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(given), wanted)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def fsdp_transformer() -> Step:
    """A GPT in shards: all_gather before each block, reduce_scatter after its backward."""
    gpt.PRESETS["small"] = SMALL_GPT
    return gpt.make_step("small", device="cpu", fsdp=True)


JOBS: dict[str, Callable[[], Step]] = {"dlrm": hybrid_dlrm, "ddp": ddp_mlp, "fsdp": fsdp_transformer}


class Ranks:
    """What this rank has of each job."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._steps: dict[str, Step] = {}

    def wait(self) -> None:
        """Until all are there."""
        dist.barrier()

    def make(self) -> None:
        """All jobs, ready to be timed: in their first steps gradients and buckets find their place."""
        torch.manual_seed(dist.get_rank())
        self._steps = {name: make() for name, make in JOBS.items()}
        for name, step in self._steps.items():
            self._folder(name).mkdir(parents=True, exist_ok=True)
            for _ in range(FIRST):
                step()

    def fabric(self) -> None:
        """Measure each exchange once, and how the ranks slow each other."""
        calibrate(self._out / f"platform-{dist.get_world_size()}", ("fabric",), 0.0)

    def record(self, name: str, number: str) -> None:
        """Record a job once more."""
        out = self._folder(name) / f"recording-{number}"
        record_step(self._steps[name], out, plain=PLAIN, profile=PROFILED, warmup=WARM_UP)

    def time(self, name: str) -> None:
        """Time some steps, each as the mean over all ranks."""
        step = self._steps[name]
        dist.barrier()
        step()
        taken = []
        for _ in range(STEPS):
            began = time.perf_counter()
            step()
            taken.append((time.perf_counter() - began) * 1e3)
        mean = torch.tensor(taken) / dist.get_world_size()
        dist.all_reduce(mean)
        if dist.get_rank() == 0:
            path = self._folder(name) / "timed.json"
            before = json.loads(path.read_text()) if path.exists() else []
            path.write_text(json.dumps([*before, mean.tolist()]))

    def _folder(self, name: str) -> Path:
        return self._out / f"{name}-{dist.get_world_size()}"


def main() -> int:
    ranks = Ranks(Path(sys.argv[1]))
    dist.init_process_group("gloo")
    for what, *which in turns():
        getattr(ranks, what)(*which)
    return 0


if __name__ == "__main__":
    sys.exit(main())
