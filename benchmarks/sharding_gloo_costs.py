"""What the models of a calibrated CPU say of the plans of `benchmarks.sharding_gloo`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from foretrace.platform.fabric import Fabric
from foretrace.platform.folder import FABRIC, read_about
from foretrace.platform.platform import Platform, read_device
from foretrace.sharding.costing import Costing
from foretrace.sharding.exchange import Exchange
from foretrace.sharding.kernels import Kernels
from foretrace.sharding.plan import Placement
from foretrace.sharding.ranks import Ranks
from foretrace.sharding.tables import Table

if TYPE_CHECKING:
    from benchmarks.sharding_gloo_jobs import Spec


def predicted(
    tables: Sequence[Spec], owners: Mapping[str, Sequence[int]], world: int, folder: Path, batch: int
) -> dict[str, float]:
    """Milliseconds of each plan, without the dense layers, which are the same in all.

    Forward and backward each wait for their slowest rank: ids are exchanged between them.
    """
    about = read_about(folder)
    host = Platform.named("h200").host  # a CPU's calls are its kernels: nothing else of a host is asked for
    platform = Platform(about.name, read_device(folder), host, None, folder, about)
    ours = [Table(t.name, t.rows, t.dim, t.pooling, zipf=t.zipf) for t in tables]
    ranks = Ranks(world, world, batch)
    costing = Costing(ours, ranks, Kernels(platform), Exchange(Fabric.read(folder / FABRIC), ranks))
    plans = {name: tuple(Placement("table_wise", (rank,)) for rank in owner) for name, owner in owners.items()}
    told = {name: costing.estimate(plan) for name, plan in plans.items()}
    return {name: (one.step - one.slowest + one.forward.max() + one.backward.max()) / 1e3 for name, one in told.items()}
