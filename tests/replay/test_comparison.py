"""A replay beside its original."""

from __future__ import annotations

from foretrace.replay.harness.comparison import (
    MOST_LETTERS,
    compare_kernels,
    failures_alike,
    hidden,
    kernels_by_name,
    shares,
    weights,
)


def test_kernels_are_matched_by_name_and_count() -> None:
    found = compare_kernels([("a", 1000.0), ("b", 500.0), ("b", 500.0)], {"a": [2, 2.0], "b": [1, 0.5]})
    assert found is not None and found["same"] == (1.0 + 0.5) / 2.5
    assert found["missing"] == [{"name": "a", "count": 1, "ms": 1.0}]
    assert found["extra"] == [{"name": "b", "count": 1, "ms": 0.5}]


def test_long_names_and_hidden_ones_are_found_again() -> None:
    name = "k" * (MOST_LETTERS + 50)
    for known in (name[:MOST_LETTERS], hidden(name)):
        found = compare_kernels([(name, 1000.0)], {known: [1, 1.0]})
        assert found is not None and found["same"] == 1.0 and not found["extra"]


def test_without_kernels_nothing_is_compared() -> None:
    assert compare_kernels([], {"a": [1, 1.0]}) is None and compare_kernels([("a", 1.0)], {}) is None
    assert kernels_by_name([]) == {}


def test_coverage_counts_calls_host_and_device_apart() -> None:
    calls = [{"host_us": 1.0, "device_us": 9.0}, {"host_us": 3.0, "device_us": 1.0}]
    assert shares([weights(calls, [0, 1], {0})]) == {"calls": 0.5, "host": 0.25, "device": 0.9}


def test_a_share_of_host_time_needs_half_of_the_calls_timed() -> None:
    calls = [{"host_us": us, "device_us": 0.0} for us in (5.0, 0.0, 0.0, 0.0)]
    assert shares([weights(calls, [0, 1, 2, 3], {0})])["host"] is None
    assert shares([weights(calls, [0, 1], {0})])["host"] == 1.0


def test_failures_that_say_the_same_are_one() -> None:
    failures = [{"call": f"aten.x.default(t{n})", "error": "no"} for n in range(4)]
    failures += [{"call": "aten.x.default(t9)", "error": "never"}]
    assert failures_alike(failures) == [("aten.x.default", 4, "no"), ("aten.x.default(t9)", 1, "never")]
