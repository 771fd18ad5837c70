"""Platforms in the terminal: what each is, how it was measured, how good its models are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType

from foretrace.platform.summary import COMMON
from foretrace.report.numbers import UNKNOWN, percent, plural
from foretrace.report.tables import lines, table

Words = dict[str, Any]

PHASES = ("forward", "backward", "optimizer")


def one_platform(words: Words, top: int) -> Iterator[RenderableType]:
    """A platform: the headline, then a table per part."""
    yield lines(f"{words['name']}: {words['provenance']}", _headline(words))
    if words["device"]:
        yield _rates(words["device"])
    if words["families"]:
        yield _families(words["families"])
    if words["host"]:
        yield _host(words["host"], top)
    if words["fabric"]:
        yield _fabric(words["fabric"], top)


def _headline(words: Words) -> Iterator[tuple[str, str, str]]:
    versions = ", ".join(f"{name} {version}" for name, version in words["versions"].items())
    yield "made", words["made"] or UNKNOWN, versions
    yield "folder", "", words["folder"]
    device = words["device"]
    if device:
        yield "device", device["name"], _device(device)
        yield "", "", device["provenance"]
    else:
        yield "device", "none", f"`foretrace calibrate device --out {words['folder']}` measures it"
    if words["carried_from"]:
        yield "models", words["carried_from"], "its times are carried over: what limits a call here, against there"
    if words["exact"]:
        yield "exact", plural(words["exact"], "call"), "of steps timed as they are, which need no model"
    if device and device["kind"] == "cuda":
        yield "streams", f"{figure(device['measured']['kernel_gap_us'])} us", _streams(device["measured"])
    if words["host"]:
        yield "host", words["host"]["name"], words["host"]["provenance"]
    else:
        yield "host", "none", f"`foretrace calibrate host --out {words['folder']}` measures it"
    if words["fabric"]:
        yield "fabric", words["fabric"]["name"], words["fabric"]["provenance"]
        yield from _links(words["fabric"]["links"]) if words["fabric"]["links"] else ()
    else:
        yield "fabric", "none", "nothing was measured between ranks"


def _device(device: Words) -> str:
    clock, size, rate, cache = (figure(device[word]) for word in ("clock_mhz", "memory_gb", "memory_gbps", "l2_mb"))
    return f"{plural(device['sms'], 'processor')} at {clock} MHz, {size} GB at {rate} GB/s, {cache} MB of cache"


def _streams(measured: Words) -> str:
    depth = measured["queue_depth"]
    ahead = f"; the host may be {depth:,} launches ahead" if depth else ""
    return f"between kernels, {figure(measured['launch_latency_us'])} us from a launch to its kernel{ahead}"


def _rates(device: Words) -> RenderableType:
    reached, measured = device["reached"], device["measured"]
    rows = [
        [
            f"{dtype} products",
            figure(peak),
            figure(measured["tflops"].get(dtype)),
            "TFLOP/s",
            percent(reached.get(dtype)),
        ]
        for dtype, peak in device["peak_tflops"].items()
    ]
    memory = [figure(device["memory_gbps"]), figure(measured["memory_gbps"]), "GB/s", percent(reached.get("memory"))]
    return table("Rates", ["<", "peak", "reached", "<", "share"], [*rows, ["memory", *memory]])


def _families(families: Words) -> RenderableType:
    rows = [
        [
            name,
            fitted["kind"],
            f"{fitted['measurements']:,}",
            *(percent(fitted[word]) for word in ("gmae", "mean", "p90")),
        ]
        for name, fitted in families.items()
    ]
    title = "Kernel models: how far they miss measurements they were not fitted on"
    return table(title, ["<family", "<model", "measurements", "GMAE", "mean", "90th percentile"], rows)


def _host(host: Words, top: int) -> RenderableType:
    known = [name for name in COMMON if name in host["calls"]]
    rows = [[f"between {kind} calls", figure(host["between"][f"{kind}_call"])] for kind in PHASES]
    rows += [[name, figure(host["calls"][name])] for name in known]
    title = f"Host time of common calls, with one launch where they launch any; {len(host['calls']):,} are known"
    return table(title, ["<", "us"], rows, top + len(PHASES))


def _fabric(fabric: Words, top: int) -> RenderableType:
    rows = [
        [
            curve["kind"],
            str(curve["ranks"]),
            str(curve["nodes"]),
            figure(curve["latency_us"]),
            figure(curve["gbps"]),
            percent(curve["spread"]),
        ]
        for curve in fabric["curves"]
    ]
    return table("Collectives", ["<kind", "ranks", "nodes", "latency us", "GB/s", "spread"], rows, top)


def one_fabric(words: Words, top: int) -> Iterator[RenderableType]:
    """A fabric: its links, then what was measured."""
    yield lines(f"{words['name']}: {words['provenance']}", _links(words["links"]) if words["links"] else ())
    if words["curves"]:
        yield _fabric(words, top)


def _links(links: Words) -> Iterator[tuple[str, str, str]]:
    inside, network = links["inside"], links["network"]
    switch = ", which adds up what passes" if inside["reduces"] else ""
    yield "node", f"{links['gpus_per_node']} {links['gpu']}", links["provenance"]
    yield "inside", f"{figure(inside['gbps'])} GB/s", f"from each GPU, {inside['kind']}{switch}"
    if network:
        cards = f"{plural(network['nics'], 'card')} of {figure(network['gbit'])} Gb/s a node, {network['kind']}"
        yield "between", f"{figure(network['latency_us'])} us", cards


def platform_list(found: list[Words]) -> RenderableType:
    """A line per platform."""
    rows = [[one["name"], one["made"] or UNKNOWN, one["provenance"]] for one in found]
    return table(plural(len(found), "platform"), ["<name", "<made", "<what…"], rows)


def device_list(found: list[Words]) -> RenderableType:
    """A line per GPU that nobody measured."""
    figures = ("sms", "clock_mhz", "memory_gb", "memory_gbps", "l2_mb")
    rates = ("float32", "float16")
    rows = [
        [one["name"], *(figure(one[f]) for f in figures), *(figure(one["peak_tflops"].get(rate)) for rate in rates)]
        for one in found
    ]
    heads = ["<name", "processors", "MHz", "GB", "GB/s", "cache MB", *rates]
    title = f"{plural(len(found), 'GPU')} by description, with times carried over from h200; products in TFLOP/s"
    return table(title, heads, rows)


def fabric_list(found: list[Words]) -> RenderableType:
    """A line per fabric."""
    rows = [
        [one["name"], f"{one['ranks']} ranks on {plural(one['nodes'], 'node')}" if one["ranks"] else "not measured",
         str(one["gpus_per_node"]), one["provenance"]]
        for one in found
    ]  # fmt: skip
    return table(plural(len(found), "fabric"), ["<name", "<measured", "GPUs a node", "<what…"], rows)


def compared(words: Words) -> RenderableType:
    """Two platforms, figure by figure."""
    first, second = words["platforms"]
    rows = [
        [row["part"], row["name"], *(figure(value) for value in row["values"]), row["unit"], figure(row["ratio"])]
        for row in words["figures"]
    ]
    return table(f"{first} and {second}", ["<part", "<figure…", first, second, "<", "ratio"], rows)


def figure(value: float | None) -> str:
    """A number with three figures that say something.

    >>> figure(989), figure(4376.5), figure(1.7), figure(0.0025), figure(None)
    ('989', '4,376', '1.7', '0.0025', '–')
    """
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
