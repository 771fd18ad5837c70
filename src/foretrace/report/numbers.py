"""Numbers as a reader wants them: three figures, a unit, and a dash where nobody knows."""

from __future__ import annotations

from collections.abc import Iterable

UNKNOWN = "–"


def ms(value: float | None) -> str:
    """Milliseconds with as many decimals as say something.

    >>> ms(630.52), ms(12.345), ms(0.01234), ms(0.0), ms(None)
    ('631', '12.3', '0.012', '0', '–')
    """
    if value is None or value != value:
        return UNKNOWN
    if value == 0:
        return "0"
    return f"{value:,.{_decimals(value)}f}"


def _decimals(value: float) -> int:
    size = abs(value)
    return 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3


def percent(share: float | None) -> str:
    """A share of one; what is not quite nothing or not quite all never reads as such.

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
    return f"{value:.1f} %" if 0 < abs(value) < 9.95 else f"{value:.0f} %"


def signed(share: float) -> str:
    """By how much something is more or less than something else, as a share of that.

    >>> signed(0.184), signed(-0.05), signed(0.00001), signed(0.0)
    ('+18 %', '-5.0 %', '<0.1 %', '0 %')
    """
    size = percent(abs(share))
    return size if size in ("0 %", "<0.1 %") else f"{'-' if share < 0 else '+'}{size}"


def dollars(cost: float | None) -> str:
    """Three figures, however small or large.

    >>> dollars(0.000564), dollars(22.84), dollars(12345.6), dollars(None)
    ('0.000564', '22.8', '12,346', '–')
    """
    if cost is None:
        return UNKNOWN
    return f"{cost:,.0f}" if cost >= 100 else f"{cost:.3g}"


def rate(value: float, unit: str) -> str:
    """So many a second; what is not quite nothing never reads as such.

    >>> rate(822.4, "GB/s"), rate(5.541, "TFLOP/s"), rate(0.00001, "TFLOP/s"), rate(12345.6, "GB/s")
    ('822 GB/s', '5.54 TFLOP/s', '<0.001 TFLOP/s', '12,346 GB/s')
    """
    figures = f"{value:,.0f}" if value >= 100 else f"{value:.3g}" if value >= 0.001 else "<0.001"
    return f"{figures} {unit}"


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


def spread(values: Iterable[float | None]) -> str:
    """The least and the most of several milliseconds, once where they read the same.

    The least has no more decimals than the most: beside 48 ms a microsecond is nothing.

    >>> spread([589.2, 626.1]), spread([3.0, 3.0]), spread([0.0004, 48.2]), spread([1.57, 11.1]), spread([])
    ('589 – 626 ms', '3.00 ms', '0 – 48.2 ms', '1.6 – 11.1 ms', '–')
    """
    known = sorted(v for v in values if v is not None)
    if not known:
        return UNKNOWN
    decimals = _decimals(known[-1])
    least, most = f"{known[0]:,.{decimals}f}" if round(known[0], decimals) else "0", ms(known[-1])
    return f"{most} ms" if least == most else f"{least} – {most} ms"


def listed(words: Iterable[object]) -> str:
    """Words in a row.

    >>> listed([0]), listed([0, 6]), listed([1, 2, 3])
    ('0', '0 and 6', '1, 2 and 3')
    """
    *most, last = [str(word) for word in words]
    return f"{', '.join(most)} and {last}" if most else last


def plural(count: int, word: str) -> str:
    """A count and its word.

    >>> plural(1, "rank"), plural(8, "rank")
    ('1 rank', '8 ranks')
    """
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def change(before: float, after: float, *, unit: str = "ms") -> str:
    """A time before and after, and by how much it changed.

    >>> change(20.0, 15.0), change(0.0, 1.0), change(20.0, 19.99)
    ('20.0 → 15.0 ms (-25 %)', '0 → 1.00 ms', '20.0 → 20.0 ms (+0 %)')
    """
    more = round((after - before) / before, 2) + 0.0 if before else 0.0  # no -0.0
    share = f" ({100 * more:+.0f} %)" if before else ""
    return f"{ms(before)} → {ms(after)} {unit}{share}"
