from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from foretrace.calibration.timing.arguments import draw_ids, id_statistics
from foretrace.platform.measurements.cases import Ids

spreads = st.one_of(
    st.builds(Ids, count=st.integers(1, 5000), skew=st.floats(0, 1.5)),
    st.builds(Ids, count=st.integers(1, 5000), reuse=st.lists(st.floats(0.01, 1), min_size=1, max_size=12).map(tuple)),
)


@settings(max_examples=80)
@given(spread=spreads, rows=st.integers(1, 10**6))
def test_there_are_as_many_ids_as_asked_for_and_all_lie_in_the_table(spread, rows):
    ids = draw_ids(spread, rows, "cpu")
    assert len(ids) == spread.count
    assert int(ids.min()) >= 0 and int(ids.max()) < rows


def test_a_steeper_power_law_hits_fewer_rows():
    torch.manual_seed(0)
    unique = [
        id_statistics(draw_ids(Ids(20000, skew=skew), 10**6, "cpu"), 10**6, 1).unique for skew in (0, 0.6, 1.0, 1.4)
    ]
    assert unique == sorted(unique, reverse=True)
    assert unique[-1] < unique[0] / 5


def test_a_histogram_comes_out_about_as_it_went_in():
    torch.manual_seed(0)
    wanted = (0.5, 0.25, 0.15, 0.1)
    found = id_statistics(draw_ids(Ids(200_000, reuse=wanted), 10**6, "cpu"), 10**6, 1)
    shares = [rows / found.unique for rows in found.reuse[:4]]
    assert shares == pytest.approx(wanted, abs=0.06)


def test_statistics_count_the_rows_by_how_often_they_are_hit():
    found = id_statistics(torch.tensor([1] * 5 + [2, 2, 3]), rows=9, bags=4)
    assert (found.count, found.unique, found.reuse, found.pooling) == (8, 3, (1, 1, 1), 2.0)


def test_a_recorded_histogram_comes_out_as_it_was():
    torch.manual_seed(0)
    rows, recorded = 10**6, (48627, 1271, 300, 40, 5)
    count = sum(hit * int(1.4 * 2**k) for k, hit in enumerate(recorded))
    shares = tuple(hit / sum(recorded) for hit in recorded)
    found = id_statistics(draw_ids(Ids(count, reuse=shares, distinct=sum(recorded)), rows, "cpu"), rows, 1)
    assert found.unique == pytest.approx(sum(recorded), rel=0.01)
    assert found.reuse[:4] == pytest.approx(recorded[:4], rel=0.1)


def test_each_of_many_tables_has_its_part_of_the_ids():
    ids = draw_ids(Ids(1000, skew=1.1, tables=4), 400, "cpu")
    assert torch.equal(ids // 100, torch.arange(4).repeat_interleave(250))
