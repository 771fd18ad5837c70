"""Numbers and names as text: significant figures with a unit, kernel names without templates, no control characters."""

from __future__ import annotations

import re
from collections.abc import Iterable

UNKNOWN = "–"
"""Stands for a figure that is not known."""
NO_TIME_MS = 5e-5
"""A time that JSON, with its four decimals, writes as zero."""
LEAST_CHANGE_MS = 0.0005
"""Smaller changes are rounding."""

HOST_COLUMNS = {"op": "call ms", "kernel family": "launch ms"}
"""Heads of the host time of rows. Of an op it is that inside its calls, of a kernel family that in launching its
kernels; of phases and modules it is all of it, T1 between their calls too."""
ALL_HOST = "host ms"


def host_column(what: str, on_device: bool) -> str:
    """The head of a table's column of host time: ops stand for kernel families where nothing runs on a device.

    >>> host_column("kernel family", True), host_column("kernel family", False), host_column("phase", True)
    ('launch ms', 'call ms', 'host ms')
    """
    return HOST_COLUMNS.get(what if on_device or what != "kernel family" else "op", ALL_HOST)


def ms(value: float | None) -> str:
    """Milliseconds to three significant figures, and to a microsecond at most.

    >>> ms(630.52), ms(12.345), ms(0.01234), ms(0.00001), ms(None)
    ('631', '12.3', '0.012', '0', '–')
    """
    if value is None or value != value:
        return UNKNOWN
    if abs(value) < NO_TIME_MS:
        return "0"
    return f"{value:,.{_decimals(value)}f}"


def _decimals(value: float) -> int:
    size = abs(value)
    return 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3


def limit_of(what: str) -> str:
    """What holds the critical path longest, as tables show it; JSON keeps ``exchange``."""
    return "communication" if what == "exchange" else what


def percent(share: float | None) -> str:
    """A share in percent; a share that is not zero or one never reads as 0 % or 100 %.

    >>> percent(0.4567), percent(0.0123), percent(0.0), percent(0.99999), percent(0.00001), percent(None)
    ('46 %', '1.2 %', '0 %', '99.9 %', '<0.1 %', '–')
    """
    if share is None or share != share:
        return UNKNOWN
    value = share * 100
    if 0 < value < 0.05:
        return "<0.1 %"
    if 95 < value < 100:
        return f"{min(value, 99.9):.1f} %"
    return f"{value:.1f} %" if 0 < abs(value) < 9.95 else f"{value:,.0f} %"


def signed(share: float) -> str:
    """A relative change, with its sign.

    >>> signed(0.184), signed(-0.05), signed(0.00001), signed(0.0)
    ('+18 %', '-5.0 %', '<0.1 %', '0 %')
    """
    size = percent(abs(share))
    return size if size in ("0 %", "<0.1 %") else f"{'-' if share < 0 else '+'}{size}"


def figure(value: float | None) -> str:
    """A number to three significant figures; all digits before the point.

    >>> figure(989), figure(4376.5), figure(1.7), figure(0.0025), figure(None)
    ('989', '4,376', '1.7', '0.0025', '–')
    """
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def money(dollars: float) -> str:
    """A price, small ones to three significant figures.

    >>> money(1234.5), money(2.5), money(0.0001234)
    ('$1,234.50', '$2.50', '$0.000123')
    """
    return f"${dollars:,.2f}" if dollars >= 1 or not dollars else f"${dollars:.3g}"


def rate(value: float, unit: str) -> str:
    """A rate with its unit; one that is not zero never reads as zero.

    >>> rate(822.4, "GB/s"), rate(5.541, "TFLOP/s"), rate(0.00001, "TFLOP/s"), rate(12345.6, "GB/s")
    ('822 GB/s', '5.54 TFLOP/s', '<0.001 TFLOP/s', '12,346 GB/s')
    """
    return f"{figure(value) if value >= 0.001 else '<0.001'} {unit}"


def bytes_(count: float | None) -> str:
    """Bytes in powers of 1024.

    >>> bytes_(512), bytes_(64 * 2**20), bytes_(18.4 * 2**30), bytes_(None)
    ('512 B', '64 MiB', '18.4 GiB', '–')
    """
    if count is None or count != count:
        return UNKNOWN
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(count) < 1024 or unit == "TiB":
            break
        count /= 1024
    return f"{count:.1f}".removesuffix(".0") + f" {unit}"


def ms_range(values: Iterable[float | None]) -> str:
    """The smallest and the largest of several times; one figure where both read the same.

    The smallest has no more decimals than the largest: next to 48 ms a microsecond does not matter.

    >>> ms_range([589.2, 626.1]), ms_range([3.0, 3.0]), ms_range([0.0004, 48.2]), ms_range([1.57, 11.1]), ms_range([])
    ('589 – 626 ms', '3.00 ms', '0 – 48.2 ms', '1.6 – 11.1 ms', '–')
    """
    known = sorted(v for v in values if v is not None)
    if not known:
        return UNKNOWN
    decimals = _decimals(known[-1])
    least, most = f"{known[0]:,.{decimals}f}" if round(known[0], decimals) else "0", ms(known[-1])
    return f"{most} ms" if least == most else f"{least} – {most} ms"


def join_words(items: Iterable[object]) -> str:
    """A list in a sentence.

    >>> join_words([0]), join_words([0, 6]), join_words([1, 2, 3])
    ('0', '0 and 6', '1, 2 and 3')
    """
    *most, last = [str(item) for item in items]
    return f"{', '.join(most)} and {last}" if most else last


def plural(count: int, noun: str) -> str:
    """A count and its noun.

    >>> plural(1, "rank"), plural(8, "rank")
    ('1 rank', '8 ranks')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def change(before: float, after: float, *, unit: str = "ms") -> str:
    """A time before and after, with the relative change, which is -100 % only where nothing is left.

    >>> change(20.0, 15.0), change(0.0, 1.0), change(20.0, 19.99)
    ('20.0 → 15.0 ms (-25 %)', '0 → 1.00 ms', '20.0 → 20.0 ms (+0 %)')
    >>> change(99.3, 0.388), change(20.0, 0.0)
    ('99.3 → 0.388 ms (-99.6 %)', '20.0 → 0 ms (-100 %)')
    """
    exact = (after - before) / before if before else 0.0
    more = round(exact, 2) + 0.0  # no -0.0
    share = f" ({signed(exact) if more == -1 else f'{100 * more:+,.0f} %'})" if before else ""
    return f"{ms(before)} → {ms(after)} {unit}{share}"


def off(pair: tuple[float, float]) -> str:
    """The relative error of the first of two values against the second.

    >>> off((11.0, 10.0)), off((9.95, 10.0)), off((9.9999, 10.0)), off((1.0, 0.0))
    ('+10.0 %', '-0.5 %', '+0.0 %', '–')
    """
    predicted, measured = pair
    return f"{round((predicted / measured - 1) * 100, 1) + 0.0:+.1f} %" if measured else UNKNOWN  # + 0.0: no -0.0


_KERNEL = re.compile(r"(?:void )?([\w:~]+)(<.*>)?(\(.*\))?$")
"""A kernel's signature."""
_TYPES = re.compile(
    r"[*&<]|::|\b(?:void|bool|char|short|int|long|float|double|unsigned|signed|half|\w+_t)\b|^\(\)$", re.ASCII
)
"""What lists of C++ types have: other brackets are part of a name, as of an annotation's attn(F), or jit(step)."""
_PLUMBING = re.compile(r"\(anonymous namespace\)::|\b(?:at|native|cuda|detail|internal|std|c10)::")
_DISTINCTIVE = re.compile(
    r"\b(?!(?:Binary|AUnary|BUnary)Functor\b)(?:\w*Functor\w*|\w+_kernel_cuda|\w+_kernel_impl|\w+_kernel)\b"
)
"""The template argument that distinguishes kernels: the function applied, not the adapters around it."""

MAX_NAME = 2000
"""Characters of a name that are read: no real kernel has more, and no line shows them."""


def printable(text: str) -> str:
    r"""The text on one line, with every control character escaped.

    >>> print(printable("a\x1b[31mb\nc"))
    a\x1b[31mb\nc
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def short_name(name: str) -> str:
    """A kernel's name without return type, namespaces, arguments and templates; other names unchanged.

    The template argument that distinguishes kernels stays: PyTorch has one elementwise kernel for all functions.

    >>> short_name("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, float>(int)")
    'vectorized_elementwise_kernel<CUDAFunctor_add>'
    >>> short_name("void cutlass::Kernel2<cutlass_80_s1688gemm_64x64>(cutlass_80_s1688gemm_64x64::Params)")
    'cutlass::Kernel2<cutlass_80_s1688gemm_64x64>'
    >>> short_name("aten::addmm"), short_name("ampere_sgemm_128x64_tn")
    ('aten::addmm', 'ampere_sgemm_128x64_tn')
    >>> short_name("combine(B)"), short_name("jit(train step)"), short_name("copy_kernel(float*, int)")
    ('combine(B)', 'jit(train step)', 'copy_kernel')
    """
    name = printable(name[:MAX_NAME])
    kernel = _KERNEL.match(_PLUMBING.sub("", name))
    if not kernel or not (kernel[2] or kernel[3]):
        return name
    if not kernel[2] and not name.startswith("void ") and not _TYPES.search(kernel[3]):
        return name
    if not kernel[2]:
        return kernel[1]
    found = _DISTINCTIVE.search(kernel[2])
    argument = found[0] if found else re.split(r"[<,(>]", kernel[2][1:])[0].strip()
    return f"{kernel[1]}<{argument}>" if argument and not argument.isdecimal() else kernel[1]


def signed_ms(change_ms: float) -> str:
    """A change in milliseconds.

    >>> signed_ms(1.5), signed_ms(-0.25), signed_ms(-0.00001)
    ('+1.50', '-0.250', '0')
    """
    return "0" if abs(change_ms) < LEAST_CHANGE_MS else f"{'+' if change_ms > 0 else ''}{ms(change_ms)}"
