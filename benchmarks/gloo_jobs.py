"""One rank of distributed jobs that train on CPUs, one after the other; `benchmarks.gloo_truth` starts them.

    torchrun --nproc-per-node 4 -m benchmarks.gloo_jobs OUT dlrm ddp

records each into ``OUT/JOB-4/recording``, and then times its steps again into ``OUT/JOB-4/again.json``: how far two
measurements of the same job lie apart is what no forecast can be held to.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import dlrm_distributed
import gpt
from foretrace.record.session import record

Step = Callable[[], torch.Tensor]
STEPS = 16
"""That are timed, and that are timed again."""
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


def timed(step: Step) -> float:
    """Median milliseconds of some steps in a row, the mean over all ranks."""
    dist.barrier()
    step()
    taken = []
    for _ in range(STEPS):
        began = time.perf_counter()
        step()
        taken.append((time.perf_counter() - began) * 1e3)
    mean = torch.tensor(median(taken) / dist.get_world_size())
    dist.all_reduce(mean)
    return mean.item()


def main() -> int:
    dist.init_process_group("gloo")
    for name in sys.argv[2:]:
        out = Path(sys.argv[1]) / f"{name}-{dist.get_world_size()}"
        torch.manual_seed(dist.get_rank())
        step = JOBS[name]()
        record(step, out / "recording", plain=STEPS, profile=3, warmup=5)
        again = timed(step)
        if dist.get_rank() == 0:
            (out / "again.json").write_text(json.dumps(again))
        del step
        dist.barrier()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
