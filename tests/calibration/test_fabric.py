"""Fabrics from the collectives of a job."""

from __future__ import annotations

import numpy as np
import pytest

from foretrace.api import load
from foretrace.calibration.fabric import job_collectives, make_fabric, specification
from foretrace.cost_models.collectives.pricing import price_collective
from foretrace.graph import ForetraceError
from foretrace.platform.fabric import Curve, Fabric
from foretrace.platform.measurements.fabric import TimedCollective
from tests.analysis.builders import all_reduce, job, rank
from tests.narrowing import present


def arrivals(*kernels, **more):
    return rank(*(all_reduce(start - 2, start - 1, (start, end), **more) for start, end in kernels))


def test_waiting_is_no_transfer():
    seen = job_collectives(job(arrivals((10, 50), (60, 82)), arrivals((40, 52), (70, 80))))
    assert seen == [TimedCollective("all_reduce", 2, 1, 1024, (12.0, 12.0))]


def test_which_ranks_share_a_node_is_said_by_the_user():
    apart = job_collectives(job(arrivals((10, 50)), arrivals((40, 52))), gpus_per_node=1)
    assert [(one.ranks, one.nodes) for one in apart] == [(2, 2)]


def test_a_group_of_which_a_rank_is_missing_is_left_out():
    with pytest.raises(ForetraceError, match="no collective on all of its ranks"):
        job_collectives(job(arrivals((10, 50), ranks=(0, 1, 2)), arrivals((30, 50), ranks=(0, 1, 2))))


def test_links_are_known_by_the_name_of_a_measured_fabric_too(tmp_path):
    assert specification("h100-8x").links == specification("h100-nvswitch").links
    bare = tmp_path / "bare.json"
    Fabric("bare", (Curve("all_reduce", 2, 1, 9.0, 9.0, 1.0, ((8.0, 1.0),), 0.1),), "").write(bare)
    with pytest.raises(ForetraceError, match="says nothing of links"):
        specification(bare)


def test_a_published_job_makes_a_fabric_that_meets_the_one_of_nccl_tests(shared, tmp_path):
    source = shared / "public" / "megatron_tp8_8xA100"
    make_fabric([source], tmp_path / "a100", links="a100-nvswitch")
    fabric = Fabric.read(tmp_path / "a100" / "fabric.json")
    assert "megatron_tp8_8xA100: collectives of a job of 8 ranks" in fabric.provenance
    assert present(fabric.links).name == "a100-nvswitch"
    ours, theirs = (
        price_collective(one, "all_reduce", 2**26, range(8)) for one in (fabric, Fabric.named("a100-8x-nvswitch"))
    )
    assert ours.typical == pytest.approx(611, rel=0.03), "the median transfer of the trace"
    assert theirs.typical == pytest.approx(ours.typical, rel=0.06)
    make_fabric([source], tmp_path / "a100")
    links = present(Fabric.read(tmp_path / "a100" / "fabric.json").links)
    assert links.name == "a100-nvswitch", "kept when measured again"


def test_transfers_of_published_jobs_lie_in_the_range_of_fabrics_measured_elsewhere(shared):
    inside = []
    for name, fabric in (("megatron_tp8_8xA100", "a100-8x-nvswitch"), ("megatron_tp2_2xV100", "v100-mesh")):
        for kind, ranks, _, nbytes, us in job_collectives(load(shared / "public" / name)):
            low, _, high = price_collective(Fabric.named(fabric), kind, nbytes, range(ranks))
            inside.append(low <= np.median(us) <= high)
    assert np.mean(inside) >= 0.75
