"""What `benchmarks.truth.single_truth`, `benchmarks.truth.sketched` and `benchmarks.truth.exact_truth` left in a
folder, to be scored."""

from __future__ import annotations

import json
import shutil
from functools import cached_property
from pathlib import Path
from statistics import median
from tempfile import mkdtemp
from typing import Any

from benchmarks.truth.single_truth import BESIDE
from benchmarks.truth.sketched import ESTIMATE
from foretrace import load
from foretrace.cost_models.host.fitting import fit_host
from foretrace.cost_models.kernels.exact import ExactTimes, TimedCall
from foretrace.graph import Job
from foretrace.platform.host import Host
from foretrace.platform.measurements.cases import EXACT, case_key
from foretrace.platform.measurements.host import HOST_FILE, read_host_runs
from foretrace.platform.measurements.kernels import SUFFIX, read_batches
from foretrace.platform.platform import Platform


class Truth:
    """Recordings, their sketches, the calibration of the host that was taken in turns with them, and timed calls."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.steps = sorted(path.name for path in (folder / "recordings").glob("[!.]*"))
        lines = (folder / BESIDE).read_text().splitlines()
        self.beside: dict[str, dict[str, Any]] = {line["step"]: line for line in map(json.loads, lines)}

    @cached_property
    def host(self) -> Host:
        """The host that the steps ran on."""
        return fit_host(read_host_runs(self.folder / HOST_FILE), "h200")

    @cached_property
    def platform(self) -> Platform:
        """The shipped models, which none of the steps was fitted on, with that host."""
        return Platform.named("h200").having(host=self.host)

    @cached_property
    def timed(self) -> Platform:
        """The same with the steps' calls timed one by one, as ``calibrate --for`` does."""
        folder = Path(mkdtemp()) / "timed"
        shutil.copytree(self.platform.folder, folder)
        found = [m for batch in read_batches(self.folder / f"{EXACT}{SUFFIX}") for m in batch.measurements]
        calls = {case_key(m.case): TimedCall.of(m) for m in found if not m.error and m.cold and m.warm}
        ExactTimes(calls).write(folder / "models")
        return Platform.read(folder).having(host=self.host)

    def recording(self, step: str) -> Job:
        """The step as it ran: timed in several turns, with nothing else of the process in its peak memory."""
        job, beside = load(self.folder / "recordings" / step), self.beside[step]
        plain = job.graphs[0].unprofiled
        if plain.peak_memory_bytes:
            plain.peak_memory_bytes -= beside["others_bytes"]
        plain.synced_ms = tuple(map(median, [plain.synced_ms, *beside.get("synced_ms", [])]))
        return job

    def sketch(self, step: str) -> Job:
        """The step as it was sketched."""
        return load(self.folder / "sketches" / step)

    def estimate(self, step: str) -> float | None:
        """What PyTorch's own estimator says that the step takes, in milliseconds; None where it failed."""
        path = self.folder / "sketches" / step / ESTIMATE
        told = json.loads(path.read_text()) if path.exists() else {}
        return told.get("ms")
