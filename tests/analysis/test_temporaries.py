"""Memory that calls take while they run."""

from foretrace.analysis.temporaries import RULES
from foretrace.graph.operators import WITH_TEMPORARIES


def test_readers_have_the_calls_with_rules_at_hand() -> None:
    assert frozenset(RULES) == WITH_TEMPORARIES
