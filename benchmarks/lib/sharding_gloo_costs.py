"""What the models of a calibrated CPU say of the plans of `benchmarks.claims.sharding.sharding_gloo`."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.truth.sharding_gloo_jobs import BATCH, Spec
from benchmarks.truth.sharding_gloo_machine import table_of
from foretrace.calibration.fitting import fit
from foretrace.platform.measurements.cases import EXACT, case_key
from foretrace.platform.measurements.kernels import SUFFIX, Batch, Measurement, close_batch, open_batch, read_all
from foretrace.platform.platform import RAW, Platform, read_fabric
from foretrace.sharding.costing import Communication, Costing
from foretrace.sharding.lookups import Single
from foretrace.sharding.options import Ranks
from foretrace.sharding.plan import Placement


def machine(out: Path, world: int, folder: Path) -> Platform:
    """The machine with so many processes at work, fitted into a folder: host, fabric, each call as all timed it."""
    raw = out / f"machine-{world}" / RAW
    if not raw.exists():
        first = out / f"platform-{world}"
        shutil.copytree(first / RAW, raw, ignore=shutil.ignore_patterns(f"{EXACT}*"))
        found = repeated(one for place in (first, *sorted((out / f"calls-{world}").iterdir()))
                         for one in read_all(place / RAW, EXACT))  # fmt: skip
        file, batch = raw / f"{EXACT}{SUFFIX}", Batch(0, len(found), {}, found)
        open_batch(file, batch)
        close_batch(file, batch)
    fit(folder, raw)
    return Platform.read(folder)


def repeated(measured: Iterable[Measurement]) -> list[Measurement]:
    """Each call once, with the repeats of all who timed it."""
    found: dict[str, Measurement] = {}
    for one in measured:
        before = found.setdefault(case_key(one.case), one)
        if before is not one:
            before.cold += one.cold
            before.warm += one.warm
    return list(found.values())


def predicted(tables: Sequence[Spec], owners: Mapping[str, Sequence[int]], platform: Platform) -> dict[str, float]:
    """Milliseconds of each plan, without the dense layers, which are the same in all.

    Forward and backward each wait for their slowest rank: ids are exchanged between them.
    """
    world = 1 + max(rank for owner in owners.values() for rank in owner)
    ranks = Ranks(world, world, BATCH)
    communication = Communication(read_fabric(platform.folder), ranks)
    costing = Costing([table_of(spec) for spec in tables], ranks, Single(platform), communication)
    plans = {name: tuple(Placement("table_wise", (rank,)) for rank in owner) for name, owner in owners.items()}
    told = {name: costing.estimate(plan) for name, plan in plans.items()}
    return {name: (one.step - one.slowest + one.forward.max() + one.backward.max()) / 1e3 for name, one in told.items()}
