"""What the documentation promises is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import foretrace as ft
from foretrace.cli.app import SUBCOMMANDS


@pytest.fixture
def root(request):
    return request.config.rootpath


def test_every_subcommand_has_a_page_and_a_row_in_the_readme(root):
    readme = (root / "README.md").read_text()
    for subcommand in SUBCOMMANDS:
        assert (root / "docs" / f"{subcommand}.md").is_file()
        assert f"docs/{subcommand}.md" in readme


def test_every_public_name_is_in_the_index(root):
    page = (root / "docs" / "index.md").read_text()
    stub = Path(ft.__file__).with_suffix(".pyi").read_text()
    public = re.findall(r"^from foretrace\.\w.* as (\w+)$", stub, re.M)  # packages are no functions
    assert public and [name for name in public if f"ft.{name}" not in page] == []


DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("README.md", "CONTRIBUTING.md", *(f"docs/{page.relative_to(DOCS)}" for page in sorted(DOCS.rglob("*.md"))))


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(root, page):
    path = root / page
    for link, anchor in re.findall(r"\]\(([^)#:]*)#?([^):]*)\)", path.read_text()):
        target = path.parent / link if link else path
        assert target.exists(), link
        assert not anchor or anchor in headings(target), f"{link}#{anchor}"


def headings(page):
    """The anchors of a page, as its host makes them of its headings."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


USUAL = {"--help", "--pace"}
"""Options that need no words: --pace is what a replay does anyway."""
EVERYWHERE = {"--csv", "--quiet"}
"""Options of all subcommands, or of all that print tables: the first page has them."""


@pytest.mark.parametrize("subcommand", SUBCOMMANDS)
def test_every_option_of_a_subcommand_is_in_its_page(root, foretrace, subcommand):
    page = (root / "docs" / f"{subcommand}.md").read_text()
    options = set(re.findall(r"--[a-z][a-z-]+", foretrace(subcommand, "--help").out)) - USUAL - EVERYWHERE
    assert {option for option in options if option not in page} == set()
    assert all(option in (root / "docs" / "index.md").read_text() for option in EVERYWHERE)


def test_every_page_is_in_the_navigation_of_the_site(root):
    navigation = (root / "mkdocs.yml").read_text()
    assert [page for page in DOCS.rglob("*.md") if f": {page.relative_to(DOCS)}\n" not in navigation] == []


def test_the_site_speaks_of_itself_alone(root):
    for page in ("mkdocs.yml", *PAGES):
        assert not re.search(r"/(?:work|root|tmp)/|localhost:\d|pypi-more", (root / page).read_text()), page
