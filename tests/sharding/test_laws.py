"""The law of calls that look up many tables."""

from dataclasses import replace

import numpy as np
import pytest

from foretrace.platform.device import Device
from foretrace.platform.platform import Platform
from foretrace.sharding.linear_models import TERMS, WIDE, Law, holds, terms
from foretrace.sharding.lookups import Fused
from foretrace.sharding.options import DATA, KINDS, TABLE, Ranks
from foretrace.sharding.shards import Pieces
from foretrace.sharding.tables import Table

H200 = Device.named("h200")
RANKS = Ranks(4, batch=1024)


def pieces(*tables, kind=TABLE, parts=1):
    return Pieces.of([KINDS[kind].piece(table, RANKS, parts) for table in tables])


def test_a_law_adds_up_over_the_tables_of_a_call():
    law = Law.of(H200)
    two = pieces(Table("a", 10_000, 64, pooling=3), Table("b", 100_000, 64, pooling=20))
    together = two.together(np.zeros(2, np.int64), 1)
    apart = law.us(two).sum(axis=0) - law.call_us()
    assert law.us(together)[0] == pytest.approx(apart)


def test_a_tensor_with_very_many_elements_is_slower_to_update():
    law = Law.of(H200)
    rows = WIDE // 64
    narrow, wide = law.us(pieces(*(Table("t", rows + more, 64, pooling=20, zipf=1.0) for more in (-1, 1))))
    assert wide[1] > 1.1 * narrow[1]
    assert wide[0] == pytest.approx(narrow[0], rel=0.1)


def test_a_device_on_paper_is_asked_of_the_models():
    some, ids = pieces(Table("t", 10_000_000, 128, pooling=40)), 1e6
    here, faster, fastest = (
        Fused(Platform.named("h200").scaled(hbm=factor)).each(some, ids) for factor in (1.0, 1.1, 2.0)
    )
    assert here == pytest.approx(Law.of(H200).us(some) - Law.of(H200).call_us())
    assert (fastest > 0).all()
    assert (fastest < faster).all()


def test_it_holds_for_plain_tables_alone():
    plain, half, adam = Table("t", 100, 64), Table("t", 100, 64, dtype="float16"), Table("t", 100, 64, optimizer="adam")
    assert holds(pieces(plain, half, adam)).tolist() == [True, False, False]
    assert not holds(pieces(plain, kind=DATA, parts=4)).any()


def test_every_term_has_a_rate_and_no_rate_is_negative():
    law = Law.of(H200)
    assert len(law.forward) == len(law.backward) == len(TERMS) == terms(pieces(Table("t", 9, 16))).shape[1]
    assert min(*law.forward, *law.backward) >= 0


def test_a_device_that_was_not_measured_has_no_law():
    assert Law.of(replace(H200, name="another")) is None
