"""Text of a recording that people will read: nothing in it steers a terminal, a page or a file."""

from __future__ import annotations

import re

MOST_LETTERS = 300


def one_word(text: str) -> str:
    """A name of an op or a module that may stand in a comment, whatever a recording says.

    >>> one_word("layers.0\\nimport os")
    'layers.0?import?os'
    """
    return re.sub(r"[^\w.:<>,+-]", "?", text, flags=re.ASCII)[:MOST_LETTERS]


def sentence(text: str) -> str:
    """One line of plain words and figures, without what Markdown or HTML give a meaning to.

    >>> sentence("3 calls of `rm`\\n\\x1b[31m<b>")
    '3 calls of ?rm????31m?b?'
    """
    return re.sub(r"[^\w .,:;%()/+='-]", "?", text, flags=re.ASCII)[:MOST_LETTERS]


def printable(text: str) -> str:
    """One line of what a keyboard has: what names of kernels are made of.

    >>> printable("gemm<float, 8>(int*)\\x1b[31m")
    'gemm<float, 8>(int*)?[31m'
    """
    return re.sub(r"[^ -~]", "?", text)
