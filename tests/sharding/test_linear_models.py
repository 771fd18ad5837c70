"""The linear model of calls that look up many tables."""

from dataclasses import replace

import numpy as np
import pytest

from foretrace.platform.device import Device
from foretrace.platform.platform import Platform
from foretrace.sharding.linear_models import TERMS, WIDE_ELEMENTS, FusedModel, terms
from foretrace.sharding.lookups import Fused
from foretrace.sharding.options import SHARDING_TYPES, Ranks
from foretrace.sharding.shards import Shards
from foretrace.sharding.tables import DATA_PARALLEL, TABLE_WISE, Table
from tests.narrowing import present

H200 = Device.named("h200")
RANKS = Ranks(4, batch=1024)


def shards(*tables, kind=TABLE_WISE, count=1):
    return Shards.of([SHARDING_TYPES[kind].shard(table, RANKS, count) for table in tables])


def test_the_model_adds_up_over_the_tables_of_a_call():
    model = present(FusedModel.of(H200))
    two = shards(Table("a", 10_000, 64, pooling=3), Table("b", 100_000, 64, pooling=20))
    together = two.fused(np.zeros(2, np.int64), 1)
    apart = model.us(two).sum(axis=0) - model.call_us()
    assert model.us(together)[0] == pytest.approx(apart)


def test_a_tensor_with_very_many_elements_is_slower_to_update():
    model = present(FusedModel.of(H200))
    rows = WIDE_ELEMENTS // 64
    narrow, wide = model.us(shards(*(Table("t", rows + more, 64, pooling=20, zipf=1.0) for more in (-1, 1))))
    assert wide[1] > 1.1 * narrow[1]
    assert wide[0] == pytest.approx(narrow[0], rel=0.1)


def test_a_hypothetical_device_is_priced_by_the_models_of_its_platform():
    some, ids = shards(Table("t", 10_000_000, 128, pooling=40)), 1e6
    here, faster, fastest = (
        Fused(Platform.named("h200").scaled(hbm=factor)).marginal(some, ids) for factor in (1.0, 1.1, 2.0)
    )
    model = present(FusedModel.of(H200))
    assert here == pytest.approx(model.us(some) - model.call_us())
    assert (fastest > 0).all()
    assert (fastest < faster).all()


def test_it_holds_for_plain_tables_alone():
    plain, half, adam = Table("t", 100, 64), Table("t", 100, 64, dtype="float16"), Table("t", 100, 64, optimizer="adam")
    assert FusedModel.applies(shards(plain, half, adam)).tolist() == [True, False, False]
    assert not FusedModel.applies(shards(plain, kind=DATA_PARALLEL, count=4)).any()


def test_every_term_has_a_rate_and_no_rate_is_negative():
    model = present(FusedModel.of(H200))
    assert len(model.forward) == len(model.backward) == len(TERMS) == terms(shards(Table("t", 9, 16))).shape[1]
    assert min(*model.forward, *model.backward) >= 0


def test_a_device_that_was_not_measured_has_no_model():
    assert FusedModel.of(replace(H200, name="another")) is None
