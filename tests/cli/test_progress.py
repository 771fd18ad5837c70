from __future__ import annotations

import time

from foretrace._progress import Progress
from foretrace.cli import options, progress
from foretrace.cli.options import working
from foretrace.cli.progress import progress_bar


def test_without_progress_nothing_is_shown(capsys):
    with progress_bar():
        pass
    assert capsys.readouterr() == ("", "")


def test_in_a_terminal_stages_are_shown_as_plain_text(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress_bar() as on_progress:
        on_progress(Progress("warming up"))
        on_progress(Progress("matrix: 3 cases [/]", 1.0, 10.0))
    out, err = capsys.readouterr()
    assert out == "" and "matrix: 3 cases [/]" in err


def test_in_a_file_there_is_no_bar(capsys):
    with progress_bar() as on_progress:
        on_progress(Progress("matrix", 1.0, 10.0))
    assert capsys.readouterr() == ("", "")


def test_hidden_it_shows_nothing(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress_bar(hidden=True) as on_progress:
        on_progress(Progress("matrix", 1.0, 10.0))
    assert capsys.readouterr() == ("", "")


def test_what_takes_long_is_said_in_a_log_now_and_then(capsys, monkeypatch):
    monkeypatch.setattr(progress, "LOG_EVERY_S", 0.01)
    with progress_bar() as on_progress:
        on_progress(Progress("sweeping", 3, 1200))
        time.sleep(0.2)
    assert "foretrace: sweeping … 3 of 1,200, 0 s\n" in capsys.readouterr().err


def test_what_is_done_soon_shows_no_spinner(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with working("reading"):
        pass
    assert capsys.readouterr() == ("", "")


def test_what_takes_a_while_shows_what_it_is(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(options, "DELAY_S", 0.0)
    with working("reading"):
        time.sleep(0.3)
    assert "reading" in capsys.readouterr().err
