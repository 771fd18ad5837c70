"""A benchmark loaded from its folder, ready to run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from .files import BenchmarkError, digest, errors_with_line, read_json, read_text
from .host import Pace, runtime
from .memory import check_fits, memory_limit
from .ranks import connect, local_rank, rank_state, ranks_sharing_memory
from .source import Source, arguments, read_inputs

FILES = ("calls.json", "original.json", "inputs.py", "step.py")
CALLS_FIELDS = (
    "device", "memory", "world", "groups", "settings", "threads", "unowned_us", "numbers", "stand_ins", "notes",
    "calls",
)  # fmt: skip


class Benchmark:
    """The step in a folder, with its inputs made and failing calls replaced by stand-ins.

    It runs on ``cpu``, ``cuda`` or ``meta``; by default on the recorded kind, or the CPU where there is no GPU.
    ``files`` has the paths of those that lie elsewhere: ranks share files of the same content. A rank that runs with
    others is given the process ``groups`` of the whole job. With ``eager``, compiled programs run as their calls.
    """

    def __init__(
        self,
        folder: Path,
        device: str | None = None,
        seed: int = 0,
        files: Mapping[str, Path] | None = None,
        groups: Sequence[tuple[str, Sequence[int]]] | None = None,
        eager: bool = False,
    ) -> None:
        self.folder = folder
        files = {name: folder / name for name in FILES} | dict(files or {})
        self.facts: dict[str, Any] = read_json(files["calls.json"], CALLS_FIELDS)
        self.original: dict[str, Any] = read_json(files["original.json"], ("kernels",))
        self.notes: list[str] = list(self.facts["notes"])
        runtime.notes = self.notes
        self._choose_device(device)
        runtime.pace = Pace()
        use_settings(self.facts["settings"])
        check_fits(self.facts["memory"], self.device, ranks_sharing_memory(self.device) if groups else 1)
        if self.facts.get("regions"):
            from .regions import load_regions

            runtime.regions = load_regions(
                files.get("regions.py", folder / "regions.py"), self.facts, self.device, eager
            )
        torch.manual_seed(seed)
        rank_state.members = self.facts["groups"]
        # Files that were edited may allocate whatever fits.
        as_written = digest(*(read_text(files[name]) for name in ("step.py", "inputs.py"))) == self.facts.get("written")
        peak = int(self.facts["memory"]["peak"]) if self.device != "meta" and as_written else None
        with errors_with_line(files["inputs.py"]), memory_limit(peak or 0, self.device if peak is not None else "meta"):
            inputs = read_inputs(files["inputs.py"])
        with torch.no_grad(), errors_with_line(files["step.py"]):
            self.source = Source(files["step.py"], self.device)
            self.inputs = arguments(self.source.step, inputs)
            self.source.make_runnable(self.inputs, peak, self.device)
            if groups is not None:
                connect(groups, self.device)
                self.source.make_runnable_on_all_ranks(self.inputs)
        if groups is None and self.facts["world"] > 1:
            self.notes.append(f"one of {self.facts['world']} ranks, alone: its collectives move nothing")

    @property
    def device(self) -> str:
        """The kind of device it runs on."""
        return runtime.kind or runtime.main

    @property
    def called(self) -> set[int]:
        """Numbers of the calls that are made, not replaced by stand-ins."""
        failed = {failure.number for failure in self.source.failures}
        return set(self.source.numbers) - failed - set(self.source.stand_ins)

    def step(self, paced: bool = True) -> Callable[[], Any]:
        """A function that runs one step, at the original's host pace or as fast as possible."""
        function = self.source.step if paced else self.source.unpaced()

        def step() -> None:
            with torch.no_grad():
                function(*self.inputs)

        return step

    def _choose_device(self, device: str | None) -> None:
        runtime.main, runtime.calls = self.facts["device"], self.facts["calls"]
        if device == "cuda" and not torch.cuda.is_available():
            raise BenchmarkError("there is no GPU here; leave out --device cuda")
        if device is None and runtime.main == "cuda" and not torch.cuda.is_available():
            device = "cpu"
            self.notes.append("recorded on a GPU; there is none here, so it ran on the CPU")
        if device is None and runtime.main == "cuda" and self.facts["world"] > 1:
            device = "cuda"  # the GPU of this process, not the one of the recorded number
        runtime.kind = device or ""
        if runtime.kind == "cuda":
            torch.cuda.set_device(local_rank() % torch.cuda.device_count())
        runtime.streams.clear()
        runtime.events.clear()


def use_settings(settings: dict[str, Any]) -> None:
    """Set PyTorch's threads, precisions and determinism as in the original.

    >>> use_settings({"cudnn_benchmark": False})
    """
    if type(settings.get("threads")) is int:  # isinstance would accept True
        torch.set_num_threads(min(max(settings["threads"], 1), 4 * (os.cpu_count() or 1)))
    if settings.get("matmul_precision") in ("highest", "high", "medium"):
        torch.set_float32_matmul_precision(settings["matmul_precision"])
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    for owner, attribute, field in (
        (matmul, "allow_bf16_reduced_precision_reduction", "reduced_bf16"),
        (matmul, "allow_fp16_reduced_precision_reduction", "reduced_fp16"),
        (cudnn, "allow_tf32", "cudnn_tf32"),
        (cudnn, "benchmark", "cudnn_benchmark"),
    ):
        if field in settings:
            setattr(owner, attribute, bool(settings[field]))
    if settings.get("deterministic"):
        torch.use_deterministic_algorithms(True, warn_only=True)
