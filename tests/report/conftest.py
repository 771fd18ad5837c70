"""A terminal to print reports on."""

from __future__ import annotations

import io

import pytest
from rich.console import Console


@pytest.fixture
def page() -> Console:
    """A terminal of eighty columns that remembers what it was shown: page.file.getvalue()."""
    return Console(file=io.StringIO(), width=80)
