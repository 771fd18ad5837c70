"""What others' traces are, told by what is in them, and what reads each kind.

A new kind of trace is a line in `READERS`, and what `kind_of` recognises it by.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

from foretrace.formats.files import pieces
from foretrace.graph import Graph

PROFILE, EXECUTION, CHAKRA = "profiler trace", "execution trace", "Chakra trace"
READERS = {
    PROFILE: ("foretrace.formats.kineto", "read_kineto"),
    EXECUTION: ("foretrace.formats.execution_trace", "read_execution_trace"),
    CHAKRA: ("foretrace.formats.chakra", "read_chakra"),
}
"""The module and the function that read each kind, the one to prefer first: imported once such a file is there."""
SUFFIXES = (".json", ".json.gz", ".et", ".et.gz", ".chakra", ".chakra.gz")
"""How the names of files in a folder end that may be traces."""
_KEYS = ((re.compile(rb'"traceEvents"\s*:'), PROFILE), (re.compile(rb'"nodes"\s*:'), EXECUTION))
_SNIFFED = 32 << 20
"""How far into a file we look for the key that tells what it is."""
_CHAKRA_START = re.compile(
    rb"[\x80-\xff]{0,3}[\x01-\x7f](\x0a[\x01-\x3f][\x20-\x7e]|\x12[\x80-\xff]?[\x01-\x7f]\x0a)", re.DOTALL
)


def read(kind: str, path: Path) -> Graph:
    """The graph in a file of a kind."""
    module, function = READERS[kind]
    graph: Graph = getattr(import_module(module), function)(path)
    return graph


def kind_of(path: Path) -> str | None:
    """What a file is: a profiler trace, an execution trace, a Chakra trace; None for something else."""
    seen = b""
    for piece in pieces(path):
        seen += piece
        text = seen.removeprefix(b"\xef\xbb\xbf").lstrip()
        if text.startswith(b"["):
            return PROFILE if b'"ph"' in text or not text.lstrip(b"[").strip(b" \t\r\n]") else None
        if not text.startswith(b"{"):
            return CHAKRA if _chakra_like(seen) else None
        keys = [(found.start(), kind) for key, kind in _KEYS if (found := key.search(text))]
        if keys:
            return min(keys)[1]
        if len(seen) > _SNIFFED:
            break
    return CHAKRA if _chakra_like(seen) else None


def _chakra_like(start: bytes) -> bool:
    """A Chakra file starts with the length of a message that holds a version or else an attribute with a name."""
    return bool(_CHAKRA_START.match(start))
