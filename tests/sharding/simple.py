"""Lookups that cost what a test can add up in its head, and tables drawn at random."""

import numpy as np

from foretrace.platform.fabric import Fabric
from foretrace.platform.platform import Platform
from foretrace.sharding.costing import Communication, Costing
from foretrace.sharding.lookups import LookupKernels
from foretrace.sharding.options import Ranks
from foretrace.sharding.shards import LookupTimes
from foretrace.sharding.tables import Table


class Simple(LookupKernels):
    """A microsecond forward and two backward for each thousand elements that are looked up."""

    def separate(self, shards):
        forward = shards.ids * shards.dim / 1e3
        typical = np.stack([forward, 2 * forward], axis=1)
        return LookupTimes(0.9 * typical, typical, 1.1 * typical)


def costing(tables, world=4, per_node=8, batch=256, kernels=Simple, fabric="h100-nvswitch", **ranks):
    made = Ranks(world, per_node, batch, **ranks)
    return Costing(tables, made, kernels(Platform.named("h200")), Communication(Fabric.named(fabric), made))


def some_tables(count, seed=0):
    draw = np.random.default_rng(seed)
    return [
        Table(
            f"t{place}",
            int(10 ** draw.uniform(3, 6)),
            int(draw.choice([16, 32, 64, 128])),
            float(draw.choice([1, 2, 5, 20])),
            zipf=float(draw.choice([0.0, 1.05])),
        )
        for place in range(count)
    ]
