"""Bounds on the time and the memory of plans, without a simulation: what is pruned by them can't be the best plan."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from math import prod

from foretrace.analysis.dispatched import dispatched_calls
from foretrace.analysis.memory import peak_memory
from foretrace.cost_models.collectives.pricing import price_collective
from foretrace.errors import ForetraceError
from foretrace.graph import Job, Op
from foretrace.graph.op import HALF_DTYPES
from foretrace.platform.fabric import Fabric
from foretrace.platform.platform import Platform
from foretrace.prediction.rates import works
from foretrace.transforms.blocks import all_repeated_blocks, block_index
from foretrace.transforms.weights import weights_of
from foretrace.whatif.plans import Choice, batches_of, settings

INPUT_SHARE = 0.06
"""Of a transformer block's activations, its input: about one in 16 of that size."""


class PlanBounds:
    """What no plan of a step can be below: time for a sample, and memory on a GPU.

    Time: its matrix products at the peak rate of the device, with what is recomputed and the bubble of a pipeline; or
    the exchange of its gradients at the best bandwidth of the fabric. Memory: weights, gradients and optimizer states,
    which the optimizer reads all at once.
    """

    def __init__(self, job: Job, where: Platform, fabric: Fabric | None, gpus_per_node: int | None = None) -> None:
        self._device, self._fabric, self._per_node = where.device, fabric, gpus_per_node
        self._peak_us, self._recomputed_us, self._weights, self._gradients, self._held = 0.0, 0.0, 0, 0, 0
        self._full, self._activations, self._blocks = 1.0, 0, 1
        self._half = False
        self._rate = cache(self._least_us_per_byte)
        batch, self._micro_batches = batches_of(job)
        self._batch, self._slower = batch or 1, 1.0  # one that does not show counts as one sample
        if job.world > 1 or where.device.runs_on_host:
            return
        calls = dispatched_calls(job.graphs[0]).calls
        ops = list(calls.ops)
        self._half = any(tensor.dtype in HALF_DTYPES for op in ops if op.phase == "forward" for tensor in op.produced)
        flops = {row: work.flops for row, work, counts in works(calls, range(len(ops)), where.device) if counts}
        rate = self._device.peak("bfloat16") * 1e6
        samples = self._batch * self._micro_batches
        self._peak_us = sum(flops.values()) / rate / samples
        self._recomputed_us = _recomputed(ops, flops) / rate / samples
        self._slower = self._device.peak("bfloat16") / max(self._device.peak("tf32"), self._device.peak("float32"))
        with suppress(ForetraceError):
            weights = weights_of(ops)
            self._gradients = sum(gradient.tensor.nbytes for gradient in weights.gradients)
            self._weights = sum(weight.nbytes for weight in weights.weights.values())
            self._held = _preexisting_bytes(ops)
            self._full = sum(4 * weight.numel for weight in weights.weights.values()) / max(self._weights, 1)
            self._activations = max((peak_memory(job.graphs[0]) or 0) - self._held - self._gradients, 0)
            self._blocks = max(len(all_repeated_blocks(ops)), 1)

    def sample_us(self, changes: Choice) -> float:
        """Microseconds for a sample."""
        given = settings(changes)
        data, context, tensor, stages, parts = (
            int(given.get(name, 1)) for name in ("data", "context", "tensor", "pipeline", "microbatches")
        )
        work = self._peak_us + self._recomputed_us * (given.get("checkpoint") == "*")
        if not self._half and not {"autocast", "dtype"} & given.keys():
            work *= self._slower
        # Stage s starts after all before it, and they end after it: the best that any division into stages makes of it.
        stage = 1 / stages if "schedule" in given else 1 / parts / (1 - (1 - 1 / parts) ** stages)
        exchange = self._exchange_us(given, data, context, tensor, stages)
        return float(max(work * stage / (data * context * tensor), exchange))

    def _exchange_us(self, given: dict[str, str], data: int, context: int, tensor: int, stages: int) -> float:
        if data * context < 2 or not self._fabric:
            return 0.0
        nbytes = self._gradients / (tensor * stages) * (0.5 if "dtype" in given else 1.0)
        rate: float = self._rate(data * context, tensor)
        samples = int(given.get("batch", self._batch)) * self._micro_batches * data
        return nbytes * rate / (samples * int(given.get("experts", 1)))

    def _least_us_per_byte(self, data: int, tensor: int) -> float:
        """Of reduced gradients, among all sizes; as all_reduce, or scattered and gathered again."""
        assert self._fabric is not None
        members = range(0, data * tensor, tensor)
        found: list[float] = []
        for size in (2**power for power in range(16, 34)):
            once, *halves = (
                price_collective(self._fabric, kind, size, members, self._per_node).typical
                for kind in ("all_reduce", "reduce_scatter")
            )
            found.append(float(min(once, *halves)) / size)
        return min(found)

    def nbytes(self, changes: Choice) -> float:
        """Bytes on the fullest GPU."""
        given = settings(changes)
        shards = int(given.get("data", 1)) * int(given.get("context", 1))
        states = max(self._held - self._weights, 0)
        kept = self._full if "mixed" in given else 0.5 if "dtype" in given else 1.0  # of what is in shards
        weights = self._weights * (0.5 if "dtype" in given else 1.0)
        if "sharded" in given:
            held = (self._weights + self._gradients + states) * kept / shards
        elif "zero1" in given:
            master = self._weights if "mixed" in given else 0
            held = weights + self._gradients * kept + (master + states) * kept / shards
        else:
            held = (self._weights + self._gradients + states) * kept
        # Experts of other ranks are not there: how much of the weights they are is not looked at.
        return held / prod(int(given.get(name, 1)) for name in ("tensor", "pipeline", "experts"))

    def likely_bytes(self, changes: Choice) -> float:
        """Bytes on the fullest GPU with activations, roughly: what the search starts from, and then corrects."""
        given = settings(changes)
        tensor, stages, parts = (int(given.get(name, 1)) for name in ("tensor", "pipeline", "microbatches"))
        batch = int(given.get("batch", self._batch)) / self._batch
        mode = given.get("checkpoint", "")
        kept = {"": 1.0, "*": 1 / self._blocks + INPUT_SHARE, "1/4": 0.75, "3/4": 0.25}.get(mode, 0.5)
        in_flight = min(stages, parts) / parts / stages / tensor / int(given.get("context", 1))
        half = 0.5 if {"dtype", "autocast"} & given.keys() else 1.0
        return self.nbytes(changes) + self._activations * batch * kept * in_flight * half


def _recomputed(ops: Sequence[Op], flops: dict[int, float]) -> float:
    """Arithmetic of recomputed blocks: all but their last products, whose results backward does not read."""
    blocks = all_repeated_blocks(ops)
    by_block: dict[int, list[float]] = {}
    for row, count in flops.items():
        block = block_index(ops[row].module, blocks) if ops[row].phase == "forward" else -1
        if block >= 0:
            by_block.setdefault(block, []).append(count)
    return sum(sum(counts) - max(counts) for counts in by_block.values())


def _preexisting_bytes(ops: Sequence[Op]) -> int:
    """Bytes of weights and optimizer states: what the optimizer reads and no call of the step made."""
    made, sizes = set[int](), dict[int, int]()
    for op in ops:
        given = {tensor.storage for tensor in op.tensors}
        if op.phase == "optimizer":
            for tensor in op.tensors:
                if tensor.storage not in made:
                    sizes[tensor.storage] = max(sizes.get(tensor.storage, 0), tensor.nbytes)
        made |= {tensor.storage for tensor in op.produced} - given
    return sum(sizes.values())
