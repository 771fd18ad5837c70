"""Steps that do not fit."""

from __future__ import annotations

import pytest

from foretrace.replay.harness.room import free_bytes, refuse_what_does_not_fit, size


def test_a_step_that_fits_is_not_refused() -> None:
    refuse_what_does_not_fit(1 << 20, "cpu")


def test_one_that_does_not_is_told_what_would_fit() -> None:
    free = free_bytes("cpu")
    assert free is not None
    with pytest.raises(MemoryError, match=r"at its peak, and .* are free on this cpu; a batch of (4|5)\d%"):
        refuse_what_does_not_fit(2 * free, "cpu")


def test_meta_tensors_take_no_memory() -> None:
    refuse_what_does_not_fit(1 << 60, "meta")


def test_sizes_are_said_in_the_unit_that_suits_them() -> None:
    assert [size(n) for n in (0, 1023, 1 << 20, 5 << 40)] == ["0.0 B", "1023.0 B", "1.0 MiB", "5.0 TiB"]
