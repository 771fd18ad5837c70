"""What ranks exchange, on a fabric."""

import numpy as np
import pytest

from foretrace.cost_models.collectives.pricing import price_collective
from foretrace.platform.fabric import Fabric
from foretrace.sharding.costing import Exchange
from foretrace.sharding.options import Ranks

H100 = Fabric.named("h100-8x")


def test_sizes_in_between_are_near_the_fabrics_own_prices():
    exchange = Exchange(H100, Ranks(8))
    for size in (3_000, 5_000_000, 300_000_000):
        assert exchange.us("ids", float(size))[1] == pytest.approx(
            price_collective(H100, "all_to_all", size, range(8)).typical, rel=0.1
        )


def test_embeddings_go_out_and_gradients_come_back():
    exchange = Exchange(H100, Ranks(8))
    assert exchange.us("pooled", 2.0**24) == pytest.approx(2 * exchange.us("ids", 2.0**24))


def test_nothing_takes_no_time():
    assert Exchange(H100, Ranks(8)).us("pooled", 0.0).tolist() == [0.0, 0.0, 0.0]
    assert Exchange(H100, Ranks(1)).us("pooled", 2.0**24).tolist() == [0.0, 0.0, 0.0]


def test_a_line_follows_the_times_near_a_size():
    exchange = Exchange(H100, Ranks(8))
    line = exchange.line("pooled", 2.0**26)
    sizes = np.array([0.8, 1.0, 1.25]) * 2.0**26
    assert line.fixed + line.per_byte * sizes == pytest.approx(exchange.us("pooled", sizes)[1], rel=0.05)
