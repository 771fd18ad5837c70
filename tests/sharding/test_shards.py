"""Access histograms, against ids that were drawn."""

import numpy as np
import pytest

from foretrace.sharding.shards import accesses, zipf_exponent
from foretrace.sharding.tables import Table

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("rows", "zipf", "count"), [(50_000, 1.05, 40_000), (5_000, 0.7, 60_000), (80_000, 0.0, 20_000)]
)
def test_a_power_law_says_what_drawing_ids_shows(rows, zipf, count):
    from foretrace.calibration.timing.arguments import draw_ids, id_statistics
    from foretrace.platform.measurements.cases import Ids

    torch.manual_seed(0)
    seen = id_statistics(draw_ids(Ids(count, skew=zipf), rows, "cpu"), rows, count)
    told = accesses(Table("t", rows, 8, zipf=zipf), count)
    assert told.unique == pytest.approx(seen.unique, rel=0.02)
    assert told.histogram[0] == pytest.approx(seen.reuse[0], rel=0.05)
    assert told.histogram.sum() == pytest.approx(told.unique, rel=0.02)


def test_a_histogram_makes_as_many_distinct_rows_as_its_mean_says():
    shares = (0.5, 0.3, 0.2)
    told = accesses(Table("t", 10**6, 8, reuse=shares), 10_000)
    mean = 0.5 * 1 + 0.3 * 2.5 + 0.2 * 5.5
    assert told.unique == pytest.approx(10_000 / mean)
    assert told.histogram[:3] / told.unique == pytest.approx(np.array(shares))


def test_rows_that_are_fewer_than_the_histogram_wants_are_hit_more_often():
    told = accesses(Table("t", 100, 8, reuse=(1.0,)), 6_400)
    assert told.unique == 100
    assert told.histogram.argmax() == 6


def test_rows_that_are_hit_more_often_than_a_histogram_counts_are_in_its_last_bin():
    told = accesses(Table("t", 100, 8), 10**15)
    assert told.histogram.argmax() == len(told.histogram) - 1 and told.histogram.sum() == 100


def test_a_table_that_is_hardly_looked_up_has_few_hits():
    assert accesses(Table("t", 100, 8, pooling=0.0), 0.0).unique <= 1


def test_the_exponent_is_found_again_from_distinct_ids():
    seen = accesses(Table("t", 100_000, 8, zipf=1.1), 30_000)
    assert zipf_exponent(100_000, 30_000, round(seen.unique)) == pytest.approx(1.1, abs=0.01)
    assert zipf_exponent(100_000, 30_000, 30_000) == 0.0
