"""Reading the files of a benchmark, with errors of one line: which file, what is wrong, what to do."""

from __future__ import annotations

import hashlib
import json
import linecache
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MACHINE_ERRORS = ("CUDA error", "device-side assert", "out of memory", "can't allocate memory")
"""Texts of errors that no call is to blame for: the device is lost, or full."""
WRITE_AGAIN = "write the benchmark again with foretrace benchmark"
INSTALL = "install what is missing"
FIX_LINE = f"correct that line, or {WRITE_AGAIN}"
MAX_ERROR_CHARS = 300
"""Length to which error messages are cut."""
SENTENCE_END = re.compile(r"\.\s+(?=[A-Z])")


class BenchmarkError(RuntimeError):
    """A benchmark that is damaged, or an option that it can't follow; the message says what to do."""


def read_text(path: Path) -> str:
    """The text of a file."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise BenchmarkError(f"{short_path(path)} is missing; {WRITE_AGAIN}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BenchmarkError(f"{short_path(path)} can't be read ({summarize_error(error)}); {WRITE_AGAIN}") from None


def digest(*texts: str) -> str:
    """SHA-256 of some texts."""
    return hashlib.sha256("\0".join(texts).encode("utf-8", "replace")).hexdigest()


def read_json(path: Path, fields: Sequence[str]) -> dict[str, Any]:
    """A JSON object with at least these fields."""
    try:
        content = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise BenchmarkError(f"{short_path(path)} is damaged ({summarize_error(error)}); {WRITE_AGAIN}") from None
    missing = [field for field in fields if not isinstance(content, dict) or field not in content]
    if missing:
        raise BenchmarkError(f"{short_path(path)} has no {', '.join(missing)}; {WRITE_AGAIN}")
    return dict(content)


@contextmanager
def errors_with_line(path: Path) -> Iterator[None]:
    """Report errors in a Python file with their line, unless the machine is at fault."""
    try:
        yield
    except BenchmarkError:
        raise
    except Exception as error:
        line = line_of(error, str(path))
        if not line:
            raise
        if any(text in str(error) for text in MACHINE_ERRORS):
            call, what = linecache.getline(str(path), line).strip(), str(error).strip().splitlines()[0]
            raise RuntimeError(f"{short_path(path)}, line {line}: {call[:MAX_ERROR_CHARS]}: {what}") from error
        what, advice = summarize_error(error), FIX_LINE
        if isinstance(error, SyntaxError):
            what = f"{error.msg}: {(error.text or '').strip()[:80]}"
        elif isinstance(error, NameError):
            named = re.search(r"'(\w+)'", str(error))  # the name of a local variable is only in the message
            made = named[1] if named else "what it reads"
            what, advice = f"no line before it makes {made}", f"put back the one that did, or {WRITE_AGAIN}"
        elif isinstance(error, ImportError):
            what, advice = str(error), install(error)
        raise BenchmarkError(f"{short_path(path)}, line {line}: {what}; {advice}") from error


def line_of(error: BaseException, path: str) -> int:
    """The line of a file that an error came from; 0 if it came from elsewhere."""
    if isinstance(error, SyntaxError) and error.filename == path:
        return error.lineno or 1
    line, frame = 0, error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == path:
            line = frame.tb_lineno
        frame = frame.tb_next
    return line


def install(error: ImportError) -> str:
    """What to install: PyTorch is known by another name.

    >>> install(ModuleNotFoundError("No module named 'torch'", name="torch"))
    'install what is missing: pip install torch'
    """
    return f"{INSTALL}: pip install torch" if error.name == "torch" else INSTALL


def summarize_error(error: BaseException) -> str:
    """Type of an error and its first sentence: messages of PyTorch can be pages long.

    >>> summarize_error(NotImplementedError("Could not run 'aten::x' on 'Meta'. This could be because …\\n[lists]"))
    "NotImplementedError: Could not run 'aten::x' on 'Meta'"
    >>> summarize_error(ValueError())
    'ValueError'
    """
    first = SENTENCE_END.split(next(iter(str(error).strip().splitlines()), ""))[0]
    return f"{type(error).__name__}: {first[:MAX_ERROR_CHARS]}" if first else type(error).__name__


def short_path(path: Path) -> str:
    """A path as messages show it: folder and file.

    >>> short_path(Path("runs/bench/step.py"))
    'bench/step.py'
    """
    return f"{path.parent.name}/{path.name}"
