"""Arguments as Python text. Whatever is no plain number, word or known constant has no text, and is not called."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from foretrace.graph import Constant, Tensor, Value
from foretrace.graph.operators import LAYOUTS, MEMORY_FORMATS
from foretrace.graph.tensor import ITEMSIZE

DEVICE = re.compile(r"(cpu|cuda|meta)(?::(\d{1,3}))?", re.ASCII)
NUMBER = re.compile(r"\d{1,9}", re.ASCII)
"""Of a stream, an event or a work."""


class Name(str):
    """A variable of the benchmark."""

    __slots__ = ()


class NotWritableError(ValueError):
    """A value that can't be written into a benchmark."""


MOST_DEPTH, MOST_LETTERS, LARGEST = 16, 1000, 1 << 64
"""Bounds of what an operator is ever given; what is beyond them was made to break something."""


def literal(value: Value | Name, depth: int = 0) -> str:
    """The text of a value.

    >>> literal([1, 0.1, float("-inf"), None, "tanh", Name("t3"), Constant("dtype", "bfloat16")])
    "[1, 0.1, -inf, None, 'tanh', t3, torch.bfloat16]"
    >>> literal(Constant("device", "cuda:1")), literal(Constant("complex", "(1+2j)"))
    ('cuda_1', '(1+2j)')
    """
    if isinstance(value, Name):
        return str(value)
    if value is None or isinstance(value, (bool, int)):
        if abs(value or 0) >= LARGEST:
            raise NotWritableError("a number that no operator takes")
        return repr(value)
    if isinstance(value, float):
        return repr(value)  # inf and nan are names that every benchmark has
    if isinstance(value, str):
        if len(value) > MOST_LETTERS:
            raise NotWritableError("a text that no operator takes")
        return ascii(str(value))
    if isinstance(value, Constant):
        return _constant(value)
    if isinstance(value, (list, tuple)):
        if depth > MOST_DEPTH:
            raise NotWritableError("lists in lists without end")
        return f"[{', '.join(literal(item, depth + 1) for item in value)}]"
    raise NotWritableError(f"a {'tensor of nobody' if isinstance(value, Tensor) else type(value).__name__}")


def _constant(value: Constant) -> str:
    kind, text = value
    known: dict[str, Sequence[str]] = {
        "dtype": tuple(ITEMSIZE),
        "layout": LAYOUTS,
        "memory_format": MEMORY_FORMATS,
    }
    if kind in known and text in known[kind]:
        return f"torch.{text}"
    if kind == "device":
        return device_name(text)
    if kind in ("stream", "event") and NUMBER.fullmatch(text):
        return str(int(text))
    if kind == "generator":
        return "None"  # the device's own: a benchmark's random numbers need not be the original's
    if kind == "float" and text in ("inf", "-inf", "nan"):
        return text
    if kind == "complex":
        return _complex(text)
    raise NotWritableError(f"a {kind} {text!r}" if kind in known else f"a {kind}")


def _complex(text: str) -> str:
    try:
        number = complex(text)
    except ValueError:
        raise NotWritableError(f"a complex {text!r}") from None
    if not (math.isfinite(number.real) and math.isfinite(number.imag)):
        raise NotWritableError(f"a complex {text!r}")
    return repr(number)


def device_name(text: str) -> str:
    """The variable that stands for a device.

    >>> device_name("cuda:0"), device_name("cpu"), device_name("cuda")
    ('cuda_0', 'cpu', 'cuda')
    """
    found = DEVICE.fullmatch(text)
    if not found:
        raise NotWritableError(f"a device {text!r}")
    return text.replace(":", "_")


def describe(tensor: Tensor) -> str:
    """A tensor in a few characters, for a reader.

    >>> describe(Tensor((128, 16), "float32"))
    'float32[128, 16]'
    """
    if tensor.dtype not in ITEMSIZE:
        raise NotWritableError(f"a tensor of {tensor.dtype!r}")
    return f"{tensor.dtype}{list(tensor.shape)}"
