from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def launched(monkeypatch):
    """What `foretrace record` would have launched."""
    calls = []

    def launch(command, out, **options):
        calls.append((list(command), out, options))
        return 7

    monkeypatch.setattr("foretrace.record.watch.launch.launch", launch)
    return calls


def test_the_command_after_the_dashes_is_launched_as_it_stands(foretrace, launched):
    ran = foretrace("record", "--out", "run", "--plain", 5, "--stop", "--", "python", "train.py", "--out", "x", "-v")
    command, out, options = launched[0]
    assert command == ["python", "train.py", "--out", "x", "-v"]
    assert out == Path("run")
    assert options == {"plain": 5, "profile": 3, "warmup": 5, "stop": True}
    assert ran.code == 7, "the job's own exit code"


def test_the_dashes_may_be_left_out(foretrace, launched):
    foretrace("record", "--out", "run", "python", "train.py", "--profile", "9")
    assert launched[0][0] == ["python", "train.py", "--profile", "9"]


def test_a_command_is_needed(foretrace, launched):
    assert foretrace("record", "--out", "run").code == 2
    assert not launched
