from __future__ import annotations

from foretrace._progress import Progress
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
