"""Tables, and what is refused of them."""

import pytest

from foretrace.graph import ForetraceError
from foretrace.sharding.tables import Table, check


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"rows": 0}, "0 rows"),
        ({"dim": 0}, "rows of 0 elements"),
        ({"pooling": float("nan")}, "pooling of nan"),
        ({"dtype": "float7"}, "dtype 'float7'"),
        ({"optimizer": "lion"}, "optimizer 'lion'"),
        ({"zipf": -1.0}, "exponent of -1"),
        ({"reuse": (0.5, 0.2)}, "adds up to 0.7"),
        ({"reuse": (1.5, -0.5)}, "is none"),
    ],
)
def test_a_table_that_cannot_be_is_refused(wrong, said):
    with pytest.raises(ForetraceError, match=said):
        check(Table(**{"name": "t", "rows": 10, "dim": 8, **wrong}))


def test_a_histogram_may_be_off_by_rounding():
    check(Table("t", 10, 8, reuse=(0.473, 0.152, 0.139, 0.112, 0.072, 0.032, 0.011, 0.005, 0.002, 0.001)))
