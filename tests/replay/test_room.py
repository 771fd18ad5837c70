"""Steps that do not fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.replay.harness import room
from foretrace.replay.harness.room import free_bytes, refuse_what_does_not_fit, size


def test_a_step_that_fits_is_not_refused() -> None:
    refuse_what_does_not_fit({"peak": 1 << 20, "lasting": 0, "batch": None}, "cpu")


def test_meta_tensors_take_no_memory() -> None:
    refuse_what_does_not_fit({"peak": 1 << 60, "lasting": 0, "batch": None}, "meta")


@pytest.mark.parametrize(
    ("lasting_gib", "batch", "ranks", "said"),
    [
        (
            1,
            64,
            1,
            r"8\.0 GiB at its peak, and 4\.0 GiB are free on this cpu; .*: --batch 27 \(it is 64\), --device meta",
        ),
        (1, None, 1, r"fit: a batch of 42 % of the original's, --device meta"),
        (6, 64, 1, r"at its peak, 6\.0 GiB of it in any batch, and .* fit: --device meta"),
        (1, 64, 3, r"on each of 3 ranks, .* fit: --batch 3 \(it is 64\), --device meta"),
    ],
)
def test_a_step_that_does_not_fit_is_told_what_would(
    lasting_gib: int, batch: int | None, ranks: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "free_bytes", lambda kind: 4 << 30)
    with pytest.raises(MemoryError, match=said):
        refuse_what_does_not_fit({"peak": 8 << 30, "lasting": lasting_gib << 30, "batch": batch}, "cpu", ranks)


def test_fewer_ranks_are_named_where_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "free_bytes", lambda kind: 5 << 30)
    with pytest.raises(MemoryError, match="--ranks 2"):
        refuse_what_does_not_fit({"peak": 2 << 30, "lasting": 0, "batch": 8}, "cpu", 4)


def test_no_more_is_free_than_a_container_may_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "limit").write_text("1048576\n")
    (tmp_path / "none").write_text("max\n")
    monkeypatch.setattr(room, "LIMITS", [tmp_path / "none", tmp_path / "nowhere", tmp_path / "limit"])
    assert free_bytes("cpu") == 1 << 20


def test_sizes_are_said_in_the_unit_that_suits_them() -> None:
    assert [size(n) for n in (0, 1023, 1 << 20, 5 << 40)] == ["0.0 B", "1023.0 B", "1.0 MiB", "5.0 TiB"]
    assert size(10**400) == "more than 1024 EiB"
