"""Values and texts of a recording as Python text that is safe to run and to read."""

from __future__ import annotations

import cmath
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from foretrace.graph import Constant, Tensor, Value
from foretrace.graph.op import ITEMSIZE
from foretrace.graph.operators import LAYOUTS, MEMORY_FORMATS
from foretrace.replay.generate.plan import Argument, Name

DEVICE = re.compile(r"(cpu|cuda|meta)(?::(\d{1,3}))?", re.ASCII)
NUMBER = re.compile(r"\d{1,9}", re.ASCII)
"""Number of a stream, an event or a work."""


class NotWritableError(ValueError):
    """A value that can't be written into a benchmark."""


MAX_DEPTH, MAX_STRING_CHARS, INT_LIMIT = 16, 1000, 1 << 64
"""Bounds of arguments: what exceeds them is damaged or hostile."""


def literal(value: Value | Name, depth: int = 0) -> str:
    """A value as Python text.

    >>> literal([1, 0.1, float("-inf"), None, "tanh", Name("t3"), Constant("dtype", "bfloat16")])
    "[1, 0.1, -inf, None, 'tanh', t3, torch.bfloat16]"
    >>> literal(Constant("device", "cuda:1")), literal(Constant("complex", "(1+2j)"))
    ('cuda_1', '(1+2j)')
    """
    if isinstance(value, Name):
        return str(value)
    if value is None or isinstance(value, (bool, int)):
        if abs(value or 0) >= INT_LIMIT:
            raise NotWritableError("a number that no operator takes")
        return repr(value)
    if isinstance(value, float):
        return repr(value)  # inf and nan are names that every benchmark has
    if isinstance(value, str):
        if len(value) > MAX_STRING_CHARS:
            raise NotWritableError("a text that no operator takes")
        return ascii(str(value))
    if isinstance(value, Constant):
        return _constant(value)
    if isinstance(value, (list, tuple)):
        if depth > MAX_DEPTH:
            raise NotWritableError("lists nested too deep")
        return f"[{', '.join(literal(item, depth + 1) for item in value)}]"
    raise NotWritableError(f"a {'tensor of no call' if isinstance(value, Tensor) else type(value).__name__}")


def _constant(value: Constant) -> str:
    kind, text = value
    known: dict[str, Sequence[str]] = {"dtype": [*ITEMSIZE], "layout": LAYOUTS, "memory_format": MEMORY_FORMATS}
    if kind in known and text in known[kind]:
        return f"torch.{text}"
    if kind == "device":
        return device_name(text)
    if kind in ("stream", "event") and NUMBER.fullmatch(text):
        return str(int(text))
    if kind == "generator":
        return "None"  # the default one: random numbers need not be the original's
    if kind == "float" and text in ("inf", "-inf", "nan"):
        return text
    if kind == "complex":
        with suppress(ValueError):
            number = complex(text)
            if cmath.isfinite(number):
                return repr(number)
    raise NotWritableError(f"a {kind} {text!r}" if kind in (*known, "complex") else f"a {kind}")


def device_name(text: str) -> str:
    """The variable of a device.

    >>> device_name("cuda:0"), device_name("cpu"), device_name("cuda")
    ('cuda_0', 'cpu', 'cuda')
    """
    found = DEVICE.fullmatch(text)
    if not found:
        raise NotWritableError(f"a device {text!r}")
    return text.replace(":", "_")


def describe(tensor: Tensor) -> str:
    """Dtype and shape of a tensor, for a comment.

    >>> describe(Tensor((128, 16), "float32"))
    'float32[128, 16]'
    """
    if tensor.dtype not in ITEMSIZE:
        raise NotWritableError(f"a tensor of {tensor.dtype!r}")
    return f"{tensor.dtype}{list(tensor.shape)}"


REDUCTIONS = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor")


class GroupVariables:
    """Variables for process groups and reductions, which no literal can express.

    >>> group_variables = GroupVariables({"tp": (0, 1)})
    >>> group_variables.named([Constant("group", "tp"), Constant("reduce_op", "sum")])
    ['group_0', 'reduce_sum']
    >>> list(group_variables.lines())
    ["group_0 = group('tp')", "reduce_sum = reduction('sum')"]
    """

    def __init__(self, groups: Mapping[str, tuple[int, ...]]) -> None:
        self._members = groups
        self._groups: dict[str, Name] = {}
        self._by_text: dict[str, Name] = {}
        self._reductions: dict[str, Name] = {}

    def named(self, value: Argument, functional: bool = False) -> Argument:
        """The argument with its groups and reductions as variables; ``functional`` calls name groups by strings."""
        if isinstance(value, Constant):
            return self._constant(value)
        if isinstance(value, (list, tuple)):
            return [self.named(item, functional) for item in value]
        if functional and isinstance(value, str) and not isinstance(value, Name) and value in self._members:
            number = len(self._by_text)
            return self._by_text.setdefault(value, Name(f"group_name_{number}"))
        return value

    def _constant(self, value: Constant) -> Argument:
        if value.kind == "group":
            if value.value not in self._members:
                raise NotWritableError("a process group of unknown ranks")
            return self._groups.setdefault(value.value, Name(f"group_{len(self._groups)}"))
        if value.kind == "reduce_op":
            if value.value not in REDUCTIONS:
                raise NotWritableError(f"a reduction {value.value!r}")
            return self._reductions.setdefault(value.value, Name(f"reduce_{value.value}"))
        return value

    @property
    def harness_functions(self) -> set[str]:
        """Functions of the harness that make these variables."""
        made = {"group": self._groups, "group_name": self._by_text, "reduction": self._reductions}
        return {function for function, variables in made.items() if variables}

    def lines(self) -> Iterator[str]:
        """The lines that make these variables."""
        yield from (f"{name} = group({str(text)!r})" for text, name in self._groups.items())
        yield from (f"{name} = group_name({str(text)!r})" for text, name in self._by_text.items())
        yield from (f"{name} = reduction({text!r})" for text, name in self._reductions.items())


MAX_TEXT_CHARS = 300


def safe_name(text: str) -> str:
    """The name of an op or a module as safe text of a comment.

    >>> safe_name("layers.0\\nimport os")
    'layers.0?import?os'
    """
    return re.sub(r"[^\w.:<>,+-]", "?", text, flags=re.ASCII)[:MAX_TEXT_CHARS]


def safe_text(text: str) -> str:
    """One line of safe text, without characters that Markdown, HTML or a terminal interpret.

    >>> safe_text("3 calls of `rm`\\n\\x1b[31m<b>")
    '3 calls of ?rm????31m?b?'
    """
    return re.sub(r"[^\w .,:;%()/+='-]", "?", text, flags=re.ASCII)[:MAX_TEXT_CHARS]


def printable(text: str) -> str:
    """One line of printable ASCII, as in names of kernels.

    >>> printable("gemm<float, 8>(int*)\\x1b[31m")
    'gemm<float, 8>(int*)?[31m'
    """
    return re.sub(r"[^ -~]", "?", text)
