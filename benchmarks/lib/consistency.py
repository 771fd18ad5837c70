"""Random results of every subcommand, and what must agree in each: screen, JSON and page, sums, and verdicts."""

from __future__ import annotations

import csv
import html
import io
import json
import random
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console

import foretrace as ft
from foretrace.analysis.compare import check_prediction, compare_steps
from foretrace.errors import ForetraceError
from foretrace.graph import Graph, Job
from foretrace.report import as_json, page_of, print_report

DATA = Path(__file__).resolve().parents[2] / "tests" / "data" / "h200"
sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))
RECORDING = DATA / "dlrm_default_b512"
STEPS = ("gpt", "bert", "resnet")
"""Examples, small ones."""
PLATFORMS = ("h200", "a100", "h100", "t4", "h200:hbm=1.5,host=2", "h200:tensor=0.5")
WAYS: tuple[dict[str, int], ...] = ({"data": 2}, {"data": 8}, {"tensor": 2}, {"data": 2, "tensor": 2})
CHANGES = (
    "dtype=bf16", "optimizer=sgd", "optimizer=adamw", "optimizer=fused", "fuse=elementwise", "fuse=launches", "depth=2",
)  # fmt: skip
ROUNDED = 0.006
"""Figures on screen have three digits."""
GIBIBYTE = 2**30
UNITS = {"us": 1e-3, "ms": 1.0, "s": 1e3, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


@cache
def step(name: str) -> Graph:
    """The sketch of a small step."""
    example = import_module(name)
    return ft.sketch(lambda: example.make_step(device="cuda", preset="tiny", dtype="bf16"), device="cuda")


# Random results.


def predicted(rng: random.Random) -> Any:
    """A prediction: of one rank, of several, or of a recording."""
    on = rng.choice(PLATFORMS)
    if rng.random() < 0.2:
        return ft.predict(RECORDING, on, kernels=rng.choice([None, "model"]))
    if rng.random() < 0.5:
        return ft.predict(step(rng.choice(STEPS)), on)
    return ft.predict(ft.parallelize(step("gpt"), **rng.choice(WAYS)), on)


def changed(rng: random.Random) -> Any:
    """A what-if of one or two changes, the batch often among them."""
    changes = rng.sample(CHANGES, rng.randint(0, 2))
    if not changes or rng.random() < 0.6:
        changes.append(f"batch={rng.choice([1, 2, 3, 8, 24, 100])}")
    return ft.what_if(step(rng.choice(STEPS)), rng.choice(PLATFORMS), changes)


def swept(rng: random.Random) -> Any:
    """A sweep over batches and platforms, with or without a limit of memory."""
    limit = rng.choice([None, round(rng.uniform(0.5, 8) * GIBIBYTE)])
    sets = {"batch": rng.sample([1, 2, 4, 8, 16, 32], rng.randint(1, 3))}
    on = rng.sample(PLATFORMS, rng.randint(1, 2))
    prices = {name: round(rng.uniform(1, 9), 2) for name in on} if rng.random() < 0.5 else None
    return ft.sweep(step(rng.choice(STEPS)), on, sets=sets, prices=prices, memory_limit=limit, workers=1)


def scaled(rng: random.Random) -> Any:
    """A scaling curve."""
    worlds = sorted(rng.sample([2, 4, 8, 16, 64, 256], rng.randint(2, 4)))
    return ft.scaling(ft.parallelize(step("gpt"), data=2), worlds, rng.choice(["h200", "a100"]))


def observed(rng: random.Random) -> Any:
    """A measured step: a recording, or a predicted timeline that is read as if it had been measured."""
    if rng.random() < 0.2:
        return ft.observe(RECORDING)
    return ft.observe(_timeline(rng))


def _timeline(rng: random.Random) -> Job:
    report = predicted(rng)
    return Job(report.workings.graphs, report.source)


def compared(rng: random.Random) -> Any:
    """The difference of two measured steps."""
    return compare_steps(ft.observe(_timeline(rng)), ft.observe(_timeline(rng)))


def checked(rng: random.Random) -> Any:
    """A prediction held against its recording."""
    job = ft.load(RECORDING)
    return check_prediction(ft.predict(job, rng.choice(PLATFORMS), kernels="model"), job)


def sharded(rng: random.Random) -> Any:
    """A sharding plan of random tables."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["name", "rows", "dim", "pooling"])
    for number in range(rng.randint(1, 12)):
        rows = round(10 ** rng.uniform(2, 7.5))
        writer.writerow([f"t{number}", rows, rng.choice([16, 64, 128]), rng.randint(1, 30)])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tables.csv"
        path.write_text(text.getvalue())
        world = rng.choice([1, 2, 4, 8])
        return ft.shard(path, world, batch=rng.choice([256, 2048]) * world, seconds=0.2, seed=rng.randrange(99))


KINDS: dict[str, Callable[[random.Random], Any]] = {
    "predict": predicted, "whatif": changed, "sweep": swept, "scaling": scaled, "show": observed, "diff": compared,
    "check": checked, "shard": sharded,
}  # fmt: skip


# What must agree.


class Case:
    """A result as the user gets it: on the screen, as JSON, as a page."""

    def __init__(self, kind: str, result: Any) -> None:
        self.kind, self.result = kind, result
        self.json: dict[str, Any] = json.loads(as_json(result))
        said = io.StringIO()
        print_report(result, None, Console(file=said, width=400, highlight=False, emoji=False))
        self.screen = said.getvalue()
        self.page = page_of(result).html() if kind not in ("diff", "check") else ""
        self.problems: list[str] = []

    def expect(self, holds: bool, what: str) -> None:
        """Note what does not hold."""
        if not holds:
            self.problems.append(f"{self.kind}: {what}")

    def same(self, one: float, other: float, what: str, by: float = 1e-3, within: float = 2e-3) -> None:
        """Two figures that must be the same, but for their rounding."""
        self.expect(abs(one - other) <= within + by * max(abs(one), abs(other)), f"{what}: {one} and {other}")

    def facts(self) -> dict[str, tuple[str, str]]:
        """The headline on the screen: figure and meaning by name."""
        head = self.screen.partition("\n\n")[0].splitlines()[1:]
        parts = [re.split(r" {2,}", line.strip(), maxsplit=2) for line in head]
        return {part[0]: (part[1], part[2] if len(part) > 2 else "") for part in parts if len(part) > 1}

    def page_facts(self) -> dict[str, str]:
        """The figures of the page's headline by name."""
        found = re.findall(r'<dt>(.*?)</dt><dd class="figure">(.*?)</dd>', self.page)
        return {html.unescape(name): html.unescape(value) for name, value in found}

    def answer(self) -> float | None:
        """The large figure of the page."""
        found = re.search(r'<div class="answer">([\d,.]+)<', self.page)
        return _number(found[1]) if found else None


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def quantity(text: str) -> float:
    """A figure with its unit, in milliseconds or bytes.

    >>> quantity("4.83 ms"), quantity("2 GiB") == 2**31, quantity("75 %")
    (4.83, True, 75.0)
    """
    value, _, unit = text.partition(" ")
    return _number(value) * UNITS.get(unit, 1.0)


def check_case(case: Case) -> list[str]:
    """What does not agree in a result; empty if all does."""
    CHECKS[case.kind](case)
    return case.problems


def _check_prediction(case: Case) -> None:
    case_of, facts = case.json, case.facts()
    _check_figures(case, case_of, facts)
    _check_report(case, case_of)
    page = case.page_facts()
    shared = set(facts) & set(page)
    case.expect(len(shared) >= 3, f"the page has {sorted(page)}, the screen {sorted(facts)}")
    for name in shared:
        case.expect(facts[name][0] == page[name], f"{name} is {facts[name][0]} on screen, {page[name]} on the page")
    case.same(case.answer() or 0.0, case_of["step_ms"], "step on the page and in JSON", ROUNDED)


def _check_figures(case: Case, fields: dict[str, Any], facts: dict[str, tuple[str, str]]) -> None:
    for name, field in (("step", "step_ms"), ("next", "step_ms_back_to_back"), ("device", "device_active_ms")):
        if name in facts and fields.get(field) is not None:
            case.same(quantity(facts[name][0]), fields[field], f"{name} on screen and in JSON", ROUNDED)
    if "memory" in facts:
        shown = quantity(facts["memory"][0])
        case.same(shown, fields["peak_memory_bytes"], "memory on screen and in JSON", 0.06)
        case.expect(("NOT" in facts["memory"][1]) == (fields["fits"] is False), "fits on screen and in JSON")


def _check_report(case: Case, fields: dict[str, Any]) -> None:
    step_ms = fields["step_ms"]
    case.expect(fields["low_ms"] <= step_ms * 1.001 and step_ms <= fields["high_ms"] * 1.001, "step outside its range")
    case.same(fields["device_active_ms"] + fields["device_idle_ms"], step_ms, "active and idle make the step", 0.01)
    case.same(sum(fields["idle_causes"].values()), fields["device_idle_ms"], "causes of idle time", 0.01, 0.01)
    case.expect(
        fields["fits"] is None or fields["fits"] == (fields["memory_verdict"] != "does not fit"),
        f"fits {fields['fits']}: {fields['peak_memory_bytes']} of {fields['memory_bytes']}",
    )
    for table in ("by_op", "by_family", "by_phase", "by_module"):
        rows = fields[table]
        case.same(sum(row["device_ms"] for row in rows), fields["kernel_ms"], f"{table} and kernel_ms", 0.01, 0.01)
        case.expect(all(-1e-9 <= row["share"] <= 1.0001 for row in rows), f"shares of {table}")
    case.same(sum(fields["coverage"].values()), 1.0 if fields["kernel_ms"] else 0.0, "coverage", 0.01)
    longest = max(step_ms, fields["span_ms"] or 0.0)
    for rank in fields["ranks"]:
        for name in ("step_ms", "device_active_ms", "device_span_ms", "wait_ms", "bubble_ms"):
            case.expect(rank[name] <= longest * 1.001 + 1e-3, f"{name} of rank {rank['rank']} over the step")
        case.expect(rank["exposed_communication_ms"] <= rank["communication_ms"] + 1e-3, "exposed communication")
    case.expect(fields["mfu"] is None or 0 <= fields["mfu"] <= 1, f"mfu {fields['mfu']}")
    path = sum(fields["critical_path_ranks"].values())
    case.same(path, longest, "the critical path is the step", 0.02)
    active = fields["device_active_ms"]
    if fields["gigabytes"] and active:
        case.same(fields["gbps"], fields["gigabytes"] / active * 1e3, "bytes a second", 0.02, 1.0)
    if fields["tflops"] and fields["tflops"] > 0.01:
        case.same(fields["tflops_per_second"], fields["tflops"] / step_ms * 1e3, "arithmetic a second", 0.02, 0.05)


def _check_what_if(case: Case) -> None:
    fields, facts = case.json, case.facts()
    before, after = fields["before"], fields["after"]
    for side in (before, after):
        _check_report(case, side)
    case.same(fields["speedup"], before["step_ms"] / after["step_ms"], "speedup")
    difference = fields["difference"]
    moved = after["step_ms"] - before["step_ms"]
    case.same(difference["step_ms"][1] - difference["step_ms"][0], moved, "change of the step", 0.01)
    case.same(sum(row["change_ms"] for row in difference["critical_path"]), moved, "changes of the path", 0.02, 0.02)
    shown = re.findall(r"[\d,.]+", facts["step"][0])
    case.same(_number(shown[0]), before["step_ms"], "step before, on screen and in JSON", ROUNDED)
    case.same(_number(shown[1]), after["step_ms"], "step after, on screen and in JSON", ROUNDED)
    page = re.search(r'<div class="answer two">([\d,.]+) → ([\d,.]+)<', case.page)
    case.expect(page is not None, "the page has no answer")
    if page:
        case.expect([page[1], page[2]] == shown[:2], f"step is {shown[:2]} on screen, {page.groups()} on the page")
    one, other = fields["sample_us"]
    if one and other and before["samples"] != after["samples"]:
        case.same(one, 1e3 * before["step_ms_back_to_back"] / before["samples"], "us a sample before", 0.01)
        case.same(other, 1e3 * after["step_ms_back_to_back"] / after["samples"], "us a sample after", 0.01)
        faster = re.search(r"([\d,.]+) times as (fast|long) per sample", case.screen)
        case.expect(faster is not None, f"no speed of a sample on screen: {facts}")
        if faster and abs(one / other - 1) > 0.02:
            times = _number(faster[1])
            case.expect((times > 1) == ((one > other) == (faster[2] == "fast")), f"{faster[0]}: {one} → {other} us")
        verdict = re.search(r'samples .*?<span class="(\w*)">', case.page)
        if verdict and verdict[1]:
            case.expect((verdict[1] == "good") == (other < one), f"{verdict[1]}: {one} → {other} us")


def _check_sweep(case: Case) -> None:
    points, best = case.json["points"], case.json["best"]
    limit = case.json["memory_limit"]
    made = [point for point in points if point["error"] is None]
    for point in made:
        if limit is not None:
            case.expect(point["fits"] == (point["memory_bytes"] <= limit), f"fits: {point['memory_bytes']} of {limit}")
        if point["samples"]:
            each = 1e3 * point["next_ms"] / point["samples"]
            case.same(point["sample_us"], each, "us a sample", 0.01)
    fitting = [point for point in made if point["fits"]]
    case.expect((best is None) == (not fitting), f"best {best} of {len(fitting)} that fit")
    if best and all(point["sample_us"] for point in fitting):
        fastest = min(point["sample_us"] for point in fitting)
        case.same(best["sample_us"], fastest, "the best is the fastest that fits")
        case.same(quantity(case.facts()["best"][0]), best["step_ms"], "best on screen and in JSON", ROUNDED)
        case.same(case.answer() or 0.0, best["step_ms"], "best on the page and in JSON", ROUNDED)
    rows = re.findall(r"^.*(?:yes|NO) *(?:\$.*|[\d.,]+)? *$", case.screen.partition("All points")[2], re.M)
    case.expect(sum("NO" in row for row in rows) == len(made) - len(fitting), "rows that do not fit, on screen")
    unfit = len(re.findall("<td>NO</td>", case.page))
    case.expect(unfit == len(made) - len(fitting), f"{unfit} rows of the page do not fit, {len(made)} {len(fitting)}")


def _check_scaling(case: Case) -> None:
    rows = case.json["scaling"]
    for row in rows:
        case.expect(row["low_ms"] <= row["step_ms"] * 1.001 <= row["high_ms"] * 1.002, "step outside its range")
        case.same(row["efficiency"], rows[0]["step_ms"] / row["step_ms"], "efficiency", 0.01)
        parts = row["exposed_communication_ms"], row["device_active_ms"]
        case.expect(all(part <= row["step_ms"] * 1.001 for part in parts), "more than the step")
    case.same(case.answer() or 0.0, rows[-1]["step_ms"], "step on the page and in JSON", ROUNDED)
    for row in rows:
        line = re.search(rf"^ *{row['world']:,} +([\d.,]+) ", case.screen, re.M)
        case.expect(line is not None, f"no row of {row['world']} ranks")
        if line:
            case.same(_number(line[1]), row["step_ms"], "step on screen and in JSON", ROUNDED)


def _check_show(case: Case) -> None:
    fields, facts = case.json, case.facts()
    for rank, step_ms in fields["step_ms"].items():
        active, idle = (fields[name].get(rank, 0.0) for name in ("device_active_ms", "device_idle_ms"))
        case.expect(active <= step_ms * 1.001, f"rank {rank} is active longer than its step")
        case.expect(
            active + idle <= step_ms * 1.01 + 0.01, f"active and idle of rank {rank}: {active} {idle} {step_ms}"
        )
        case.expect((fields["wait_ms"].get(rank) or 0.0) <= step_ms * 1.001, f"rank {rank} waits longer than its step")
    kernels = sum(fields["kernel_ms"].values()) / max(1, len(fields["kernel_ms"]))
    for table in ("by_op", "by_family", "by_phase"):
        total = sum(row["device_ms"] for row in fields[table])
        case.same(total, kernels, f"{table} and kernel_ms", 0.02, 0.01)
    slowest = max(fields["step_ms"].values())
    case.same(quantity(facts["step"][0]), slowest, "step on screen and in JSON", ROUNDED)
    case.same(case.answer() or 0.0, slowest, "step on the page and in JSON", ROUNDED)
    page = case.page_facts()
    for name in set(facts) & set(page):
        case.expect(facts[name][0] == page[name], f"{name} is {facts[name][0]} on screen, {page[name]} on the page")


def _check_diff(case: Case) -> None:
    fields = case.json
    path = sum(row["change_ms"] for row in fields["critical_path"])
    ends = [sum(row["ms"][side] for row in fields["critical_path"]) for side in (0, 1)]
    case.same(path, ends[1] - ends[0], "changes of the path", 0.01, 0.02)
    for table in ("by_op", "by_family", "by_phase", "matched"):
        for row in fields[table]:
            change = sum(row[part][1] - row[part][0] for part in ("device_ms", "host_ms"))
            case.same(row["change_ms"], change, f"change of {row['name']} in {table}", 0.01, 0.01)
    both = [sum(row["change_ms"] for row in fields[table]) for table in ("by_op", "matched")]
    case.same(both[0], both[1], "changes by op and of matched ops", 0.01, 0.05)


def _check_check(case: Case) -> None:
    fields = case.json
    text = re.search(r"^ *step +([\d.,]+)", case.screen, re.M)
    case.expect(text is not None, "no step on screen")
    shown = fields.get("predicted_ms", fields.get("step_ms"))
    predicted_ms = shown[0] if isinstance(shown, list) else shown
    if text and isinstance(predicted_ms, (int, float)):
        case.same(_number(text[1]), predicted_ms, "step on screen and in JSON", ROUNDED)


def _check_shard(case: Case) -> None:
    fields, facts = case.json, case.facts()
    slowest = max(rank["lookup_ms"] for rank in fields["ranks"])
    case.same(fields["lookup_ms"], slowest + fields["hot_rows_ms"], "lookups are those of the slowest rank", 0.01)
    exchange = sum(fields["exchange_ms"].values())
    parts = fields["lookup_ms"] + exchange + fields["dense_ms"]
    case.same(fields["summed_ms"], parts, "lookups, exchange and the rest add up", 0.01)
    case.expect(fields["low_ms"] <= fields["step_ms"] * 1.001 <= fields["high_ms"] * 1.002, "step outside its range")
    case.same(quantity(facts["step"][0]), fields["step_ms"], "step on screen and in JSON", ROUNDED)
    case.same(case.answer() or 0.0, fields["step_ms"], "step on the page and in JSON", ROUNDED)
    case.same(quantity(facts["lookups"][0]), fields["lookup_ms"], "lookups on screen and in JSON", ROUNDED)
    case.expect(len(fields["ranks"]) == fields["world"], "a row for each rank")


CHECKS: dict[str, Callable[[Case], None]] = {
    "predict": _check_prediction, "whatif": _check_what_if, "sweep": _check_sweep, "scaling": _check_scaling,
    "show": _check_show, "diff": _check_diff, "check": _check_check, "shard": _check_shard,
}  # fmt: skip


def random_cases(count: int, seed: int, kinds: tuple[str, ...] = tuple(KINDS)) -> Iterator[tuple[int, str, list[str]]]:
    """Random results: number, kind, and what does not agree in each. What can't be made is drawn again."""
    number = drawn = 0
    while number < count:
        kind = kinds[number % len(kinds)]
        rng = random.Random(f"{seed} {drawn}")
        drawn += 1
        try:
            result = KINDS[kind](rng)
        except ForetraceError:
            continue
        yield drawn - 1, kind, check_case(Case(kind, result))
        number += 1
