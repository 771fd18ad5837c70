"""Something to report, and a page to report it on."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
from rich.console import Console

from tests.report.samples import WORDS


@pytest.fixture
def words() -> dict[str, Any]:
    return copy.deepcopy(WORDS)


@pytest.fixture
def page() -> Console:
    """A terminal of eighty columns that remembers what it was shown: page.file.getvalue()."""
    return Console(file=io.StringIO(), width=80)
