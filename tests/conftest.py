"""What all tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# On a busy machine everything is slow: that says nothing about a strategy.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of published measurements beside the repository."""
    folder = Path(__file__).resolve().parents[1].parent / "shared"
    if not (folder / "public").is_dir():
        pytest.skip(f"no measurements at {folder}: this test reads published traces that are not part of the project")
    return folder
