"""What the documentation promises is there."""

from __future__ import annotations

import re

import pytest

from foretrace.cli.main import app


@pytest.fixture
def root(request):
    return request.config.rootpath


def test_every_verb_has_a_page_and_a_row_in_the_readme(root):
    readme = (root / "README.md").read_text()
    verbs = [command.callback.__name__ for command in app.registered_commands]
    for verb in verbs + [group.name for group in app.registered_groups]:
        assert (root / "docs" / f"{verb}.md").is_file()
        assert f"docs/{verb}.md" in readme


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/index.md",
        "docs/show.md",
        "docs/diff.md",
        "docs/export.md",
        "docs/record.md",
        "docs/calibrate.md",
        "docs/platform.md",
    ],
)
def test_links_lead_somewhere(root, page):
    path = root / page
    for link in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
        assert (path.parent / link).exists(), link


def test_every_option_of_show_is_in_its_page(root, foretrace):
    page = (root / "docs" / "show.md").read_text()
    options = set(re.findall(r"--[a-z]+", foretrace("show", "--help").out)) - {"--help"}
    assert options and all(option in page for option in options)
