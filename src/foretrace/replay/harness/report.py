"""A replay compared with the original: kernels, coverage, all ranks as one result; and the text of that."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

MAX_NAME_CHARS = 500
"""Length to which names of kernels are cut; some would take pages."""


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
    """Matched, missing and extra kernels by name; None where replay or original has no kernels.

    ``same`` is the share of the original's device time in kernels that the replay launches by the same name as often.

    >>> compare_kernels([("a", 1000.0), ("a", 900.0), ("c", 5.0)], {"a": [2, 3.0], "b": [1, 1.0]})["same"]
    0.75
    """
    if not kernels or not original:
        return None
    # The original's list has names cut, or obfuscated.
    secret = {obfuscated(name): name for name, _ in kernels}
    listed = {name: hidden if hidden in original else name[:MAX_NAME_CHARS] for hidden, name in secret.items()}
    replayed = kernels_by_name([(listed[name], us) for name, us in kernels])
    total = sum(ms for _, ms in original.values())
    both = [name for name in original if name in replayed]
    there = sum(original[name][1] * min(1.0, replayed[name][0] / original[name][0]) for name in both)
    rows = []
    for name in sorted(both, key=lambda name: -original[name][1]):
        (count, ms), (was_count, was_ms) = replayed[name], original[name]
        row = {"name": name, "count": int(count), "ms": ms, "was_count": int(was_count), "was_ms": was_ms}
        rows.append(row)
    share = there / total if total else None
    return {"same": share, "matched": rows, "missing": _named(original, replayed), "extra": _named(replayed, original)}


def obfuscated(name: str) -> str:
    """A hash in place of a kernel's name.

    >>> obfuscated("my_secret_kernel")
    'kernel-12de8e46'
    """
    return f"kernel-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _named(some: dict[str, list[float]], others: dict[str, list[float]]) -> list[dict[str, Any]]:
    """Kernels that some have more often than others."""
    found = []
    for name, (count, ms) in some.items():
        more = count - others.get(name, [0, 0.0])[0]
        if more > 0:
            found.append({"name": name, "count": int(more), "ms": ms * more / count})
    return sorted(found, key=lambda row: -float(row["ms"]))


def weights(
    calls: list[dict[str, Any]], numbers: list[int], called: set[int], unowned_us: float = 0.0
) -> dict[str, list[float]]:
    """Replayed part and total of the original: pairs of call counts, of host times and of device times.

    Device time that no call launched is part of the total.

    >>> weights([{"host_us": 3.0, "device_us": 6.0}], [0], {0}, unowned_us=2.0)["device"]
    [6.0, 8.0]
    """
    done = [number for number in numbers if number in called]

    def sums(field: str) -> list[float]:
        return [sum(calls[number][field] for number in some) for some in (done, numbers)]

    # A noisy recording has no host time for most of its calls: a share of the others' would mean nothing.
    timed = sum(calls[number]["host_us"] > 0 for number in numbers) * 2 >= len(numbers)
    host = sums("host_us") if timed else [0.0, 0.0]
    device, whole = sums("device_us")
    return {"calls": [len(done), len(numbers)], "host": host, "device": [device, whole + unowned_us]}


def shares(of_ranks: list[dict[str, list[float]]]) -> dict[str, float | None]:
    """Coverage over all ranks: the share of the original that was replayed.

    >>> shares([{"calls": [3, 4], "device": [0, 0]}, {"calls": [4, 4], "device": [0, 0]}])
    {'calls': 0.875, 'device': None}
    """
    found: dict[str, float | None] = {}
    for field in of_ranks[0]:
        done, whole = (sum(entry[field][place] for entry in of_ranks) for place in (0, 1))
        found[field] = done / whole if whole else None
    return found


def by_op(calls: list[dict[str, Any]], numbers: list[int], called: set[int]) -> dict[str, list[int]]:
    """Of each op, how often the replay called it, and how often the original did.

    >>> by_op([{"name": "aten::mm"}, {"name": "aten::mm"}], [0, 1], {0})
    {'aten::mm': [1, 2]}
    """
    found: dict[str, list[int]] = {}
    for number in numbers:
        entry = found.setdefault(calls[number]["name"], [0, 0])
        entry[0] += number in called
        entry[1] += 1
    return found


def group_failures(failures: list[dict[str, Any]]) -> list[tuple[str, int, str]]:
    """Failures grouped by op and error: the call, or the op of several calls; their number; the error.

    >>> group_failures([{"call": "aten.mm.default(t1, t2)", "error": "no"}])
    [('aten.mm.default(t1, t2)', 1, 'no')]
    """
    alike: dict[tuple[str, str], list[str]] = {}
    for failure in failures:
        alike.setdefault((failure["call"].partition("(")[0], failure["error"]), []).append(failure["call"])
    return [(op if len(calls) > 1 else calls[0], len(calls), error) for (op, error), calls in alike.items()]


PER_RANK = ("step_ms", "kernel_ms", "launches", "peak_memory_bytes")


def merge_ranks(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Results of all ranks as one: step time of the slowest, memory of the fullest; ``ranks`` has those of each."""
    if len(results) == 1:
        (alone,) = results
        figures = {field: value for field, value in alone.items() if field != "weights"}
        return {**figures, "coverage": shares([alone["weights"]]), "world": 1, "ranks": None}
    slowest = max(results, key=lambda result: result["step_ms"])
    whole = {**slowest, "world": len(results), "original": dict(slowest["original"])}
    for field in ("step_ms", "step_ms_back_to_back", "kernel_ms", "launches", "peak_memory_bytes"):
        whole[field] = max((r[field] for r in results if r[field] is not None), default=None)
        originals = [result["original"].get(field) for result in results]
        whole["original"][field] = max((figure for figure in originals if figure is not None), default=None)
    whole["coverage"] = shares([result["weights"] for result in results])
    whole["ops"] = {}
    for result in results:
        for name, counts in result["ops"].items():
            whole["ops"][name] = [a + b for a, b in zip(whole["ops"].get(name, [0, 0]), counts)]
    for field in ("failures", "stand_ins"):
        whole[field] = [{**entry, "rank": rank} for rank, result in enumerate(results) for entry in result[field]]
    whole["notes"] = merge_notes([result["notes"] for result in results])
    whole["ranks"] = [
        {**{field: result[field] for field in PER_RANK}, "coverage": shares([result["weights"]])} for result in results
    ]
    del whole["weights"]
    return whole


def merge_notes(of_ranks: Sequence[Sequence[str]]) -> list[str]:
    """Notes of all ranks, each once; a note of only some ranks names them.

    >>> merge_notes([["slow", "no GPU"], ["no GPU", "delayed"], ["no GPU", "delayed"]])
    ['rank 0: slow', 'no GPU', 'ranks 1, 2: delayed']
    """
    ranks_of: dict[str, list[int]] = {}
    for rank, own in enumerate(of_ranks):
        for note in dict.fromkeys(own):
            ranks_of.setdefault(note, []).append(rank)
    return [
        note if len(ranks) == len(of_ranks) else f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}: {note}"
        for note, ranks in ranks_of.items()
    ]


NAME_WIDTH = 60


def format_result(result: dict[str, Any], top: int) -> str:
    """The text of a result: figures beside the original's, then differences, at most ``top`` rows a table."""
    return "\n".join([*_figures(result), *_kernels(result, top), *_problems(result, top)])


def _figures(result: dict[str, Any]) -> Iterator[str]:
    was = result["original"]
    rows = (
        ("step", "step_ms", _ms),
        ("next", "step_ms_back_to_back", _ms),
        ("kernels", "kernel_ms", _ms),
        ("launches", "launches", str),
        ("memory", "peak_memory_bytes", format_bytes),
    )
    known = [(name, show, result[field], was.get(field)) for name, field, show in rows if result[field] is not None]
    compared = any(recorded is not None for *_, recorded in known)
    where = was.get("device", result["device"])
    original = f"; the original ran on {where}" if compared and where != result["device"] else ""
    yield f"replayed on {result['device']}{'' if result['paced'] else ', not paced'}{original}"
    yield f"{'':10}{'replay':>12}{'original' if compared else '':>12}".rstrip()
    for name, show, replayed, recorded in known:
        was_shown = "" if not compared else "–" if recorded is None else show(recorded)
        change = round((replayed / recorded - 1) * 100, 1) + 0.0 if recorded else 0.0  # 0.0 takes the sign off -0.0
        off = f"{change:+.1f} %" if recorded else ""
        yield f"  {name:8}{show(replayed):>12}{was_shown:>12}  {off}".rstrip()
    for field, (name, form) in GPU_FIGURES.items():
        if field in (result["system"] or {}):
            yield f"  {name:8}{form.format(result['system'][field]):>12}"
    coverage = result["coverage"].items()
    shares = ", ".join(f"{100 * share:.1f} % of {PARTS[of]}" for of, share in coverage if share is not None)
    yield f"  covered  {shares}{', of their host time unknown' if result['coverage']['host'] is None else ''}"


GPU_FIGURES = {
    "power_w": ("power", "{:.0f} W"),
    "clock_mhz": ("clock", "{:.0f} MHz"),
    "sm_active": ("SM", "{:.1f} % active"),
    "tensor_core_active": ("tensor", "{:.1f} % of cores active"),
    "occupancy": ("warps", "{:.1f} % occupancy"),
    "dram_gbps": ("DRAM", "{:.0f} GB/s"),
    "l2_hit": ("L2", "{:.1f} % hits"),
    "error": ("counters", "none: {}"),
}
"""Label and format of each figure of the GPU."""


PARTS = {"calls": "the calls", "host": "their host time", "device": "their device time"}
"""Of the original, what coverage is the share of."""


def _ms(value: float) -> str:
    return f"{value:.3f} ms" if value < 10 else f"{value:.2f} ms"


def _kernels(result: dict[str, Any], top: int) -> Iterator[str]:
    compared = result["kernels"]
    if not compared:
        return
    yield f"  same     {100 * compared['same']:.1f} % of the original's kernel time, by name"
    yield ""
    yield f"{'kernel':{NAME_WIDTH}}{'count':>7}{'ms':>10}{'was':>10}"
    for row in compared["matched"][:top]:
        yield f"{row['name'][: NAME_WIDTH - 2]:{NAME_WIDTH}}{row['count']:>7}{row['ms']:>10.3f}{row['was_ms']:>10.3f}"
    for field in ("missing", "extra"):
        for row in compared[field][:top]:
            yield f"{field}: {row['name'][:NAME_WIDTH]}, {row['count']} times, {row['ms']:.3f} ms"


def _problems(result: dict[str, Any], top: int) -> Iterator[str]:
    alike = group_failures(result["failures"])
    for call, count, error in alike[:top]:
        yield f"failed: {call}: {f'{count} calls: ' if count > 1 else ''}{error}"
    more = sum(count for _, count, _ in alike[top:])
    if more:
        yield f"… and {more} calls more that failed"
    for entry in result["stand_ins"][:top]:
        yield f"not called: {entry['call']} ({entry['why']}); a stand-in of its size and time is in its place"
    for name, count in result["translated"].items():
        yield f"translated: {name}, {count} times: this device does the same by another operator"
    for note in result["notes"]:
        yield f"- {note}"


UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def format_bytes(nbytes: float) -> str:
    """Bytes in a binary unit.

    >>> format_bytes(3 << 30), format_bytes(1500)
    ('3.0 GiB', '1.5 KiB')
    """
    if nbytes >= 1024 ** len(UNITS):
        return f"more than 1024 {UNITS[-1]}"
    power = min(int(math.log(max(nbytes, 1), 1024)), len(UNITS) - 1)
    return f"{nbytes / 1024**power:.1f} {UNITS[power]}"
