"""A replay beside the original: times, kernels by name, memory, launches."""

from __future__ import annotations

import hashlib
from typing import Any

MOST_LETTERS = 500
"""Of a kernel's name; some take pages."""


def kernels_by_name(kernels: list[tuple[str, float]]) -> dict[str, list[float]]:
    """Count and milliseconds of each name.

    >>> kernels_by_name([("gemm", 1000.0), ("gemm", 500.0)])
    {'gemm': [2, 1.5]}
    """
    found: dict[str, list[float]] = {}
    for name, us in kernels:
        entry = found.setdefault(name, [0, 0.0])
        entry[0] += 1
        entry[1] += us / 1e3
    return found


def compare_kernels(kernels: list[tuple[str, float]], original: dict[str, list[float]]) -> dict[str, Any] | None:
    """Which kernels of the original are there, which are missing, which are extra; None where either has none.

    ``same`` is the share of the original's device time in kernels that are there by the same name as often.

    >>> compare_kernels([("a", 1000.0), ("a", 900.0), ("c", 5.0)], {"a": [2, 3.0], "b": [1, 1.0]})["same"]
    0.75
    """
    if not kernels or not original:
        return None
    ours = kernels_by_name([(_as_in(original, name), us) for name, us in kernels])
    total = sum(ms for _, ms in original.values())
    both = [name for name in original if name in ours]
    there = sum(original[name][1] * min(1.0, ours[name][0] / original[name][0]) for name in both)
    rows = [
        {
            "name": name,
            "count": int(ours[name][0]),
            "ms": ours[name][1],
            "was_count": int(original[name][0]),
            "was_ms": original[name][1],
        }
        for name in sorted(both, key=lambda name: -original[name][1])
    ]
    return {
        "same": there / total if total else None,
        "matched": rows,
        "missing": _named(original, ours),
        "extra": _named(ours, original),
    }


def _as_in(original: dict[str, list[float]], name: str) -> str:
    """The name of a kernel as the original's list has it: cut, or hidden behind a number."""
    cut, secret = name[:MOST_LETTERS], hidden(name)
    return secret if secret in original else cut


def hidden(name: str) -> str:
    """A name that tells nothing, and always the same.

    >>> hidden("my_secret_kernel")
    'kernel-12de8e46'
    """
    return f"kernel-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _named(some: dict[str, list[float]], others: dict[str, list[float]]) -> list[dict[str, Any]]:
    """Kernels of which the others have fewer, or none."""
    found = []
    for name, (count, ms) in some.items():
        more = count - others.get(name, [0, 0.0])[0]
        if more > 0:
            found.append({"name": name, "count": int(more), "ms": ms * more / count})
    return sorted(found, key=lambda row: -float(row["ms"]))


def weights(
    calls: list[dict[str, Any]], numbers: list[int], called: set[int], unowned_us: float = 0.0
) -> dict[str, list[float]]:
    """How much of the original was really called, and all of it: pairs of calls, of host time and of device time.

    Device time that no call owns is part of the whole.

    >>> weights([{"host_us": 3.0, "device_us": 6.0}], [0], {0}, unowned_us=2.0)["device"]
    [6.0, 8.0]
    """
    done = [number for number in numbers if number in called]

    def sums(word: str) -> list[float]:
        return [sum(calls[number][word] for number in some) for some in (done, numbers)]

    # A noisy recording has no host time for most of its calls: a share of the others' would tell nothing.
    timed = sum(calls[number]["host_us"] > 0 for number in numbers) * 2 >= len(numbers)
    host = sums("host_us") if timed else [0.0, 0.0]
    device, whole = sums("device_us")
    return {"calls": [len(done), len(numbers)], "host": host, "device": [device, whole + unowned_us]}


def shares(of_ranks: list[dict[str, list[float]]]) -> dict[str, float | None]:
    """The share that was called, over all ranks.

    >>> shares([{"calls": [3, 4], "device": [0, 0]}, {"calls": [4, 4], "device": [0, 0]}])
    {'calls': 0.875, 'device': None}
    """
    found: dict[str, float | None] = {}
    for word in of_ranks[0]:
        done, whole = (sum(entry[word][place] for entry in of_ranks) for place in (0, 1))
        found[word] = done / whole if whole else None
    return found


def by_op(calls: list[dict[str, Any]], numbers: list[int], called: set[int]) -> dict[str, list[int]]:
    """Of each op how often it was really called, and how often the original called it.

    >>> by_op([{"name": "aten::mm"}, {"name": "aten::mm"}], [0, 1], {0})
    {'aten::mm': [1, 2]}
    """
    found: dict[str, list[int]] = {}
    for number in numbers:
        entry = found.setdefault(calls[number]["name"], [0, 0])
        entry[0] += number in called
        entry[1] += 1
    return found


def failures_alike(failures: list[dict[str, Any]]) -> list[tuple[str, int, str]]:
    """Failures of one op with the same error, as one: the call, or the op of several; how many; what they say.

    >>> failures_alike([{"call": "aten.mm.default(t1, t2)", "error": "no"}])
    [('aten.mm.default(t1, t2)', 1, 'no')]
    """
    alike: dict[tuple[str, str], list[str]] = {}
    for failure in failures:
        alike.setdefault((failure["call"].partition("(")[0], failure["error"]), []).append(failure["call"])
    return [(op if len(calls) > 1 else calls[0], len(calls), error) for (op, error), calls in alike.items()]
