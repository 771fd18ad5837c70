"""What the docs site has beyond docs/: the contributing guide and the changelog, which lie beside it, as pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
BESIDE = ("CONTRIBUTING.md", "CHANGELOG.md")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that lie outside of docs/."""
    for name in BESIDE:
        files.append(File.generated(config, name.lower(), content=(ROOT / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links between docs/ and what lies beside it, as they are on the site."""
    if page.file.src_uri in map(str.lower, BESIDE):
        return markdown.replace("](docs/", "](")
    for name in BESIDE:
        markdown = markdown.replace(f"](../{name}", f"]({name.lower()}")
    return markdown
