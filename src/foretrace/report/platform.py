"""Platforms and fabrics in the terminal: what they are, how they were measured, how good their models are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType

from foretrace.platform.summary import COMMON_CALLS
from foretrace.report.formatting import UNKNOWN, figure, percent, plural
from foretrace.report.json import Document
from foretrace.report.terminal import Blocks, Fact, fact_lines, table

if TYPE_CHECKING:
    from foretrace.calibration.timing.kernels import MeasuredFamily

Fields = dict[str, Any]
"""Fields of the JSON that describes a platform, as documented in docs/platform.md."""

PHASES = ("forward", "backward", "optimizer")


def platform_blocks(summary: Document, top: int | None) -> Blocks:
    """A platform: the headline, then a table for each part."""
    fields = summary.to_dict()
    yield fact_lines(f"{fields['name']}: {fields['provenance']}", _headline(fields))
    if fields["device"]:
        yield _rates(fields["device"])
    if fields["tables"]:
        yield _tables(fields["tables"], fields["tables_of"])
    if fields["families"]:
        yield _families(fields["families"], scaled=fields["carried_from"] is not None)
    if fields["host"]:
        yield _host(fields["host"], top)
    if fields["fabric"]:
        yield _fabric(fields["fabric"], top)


def _headline(fields: Fields) -> Iterator[Fact]:
    versions = ", ".join(f"{name} {version}" for name, version in fields["versions"].items())
    yield "made", fields["made"] or UNKNOWN, versions
    yield "folder", "", fields["folder"]
    device = fields["device"]
    if device:
        yield "device", device["name"], _device(device)
        yield "", "", device["provenance"]
    else:
        yield "device", "none", f"`foretrace calibrate device --out {fields['folder']}` measures it"
    if fields["carried_from"]:
        own = fields["tables_of"] == fields["name"]
        which = "kernel times that the tables below do not tell" if own else "kernel times"
        yield "models", fields["carried_from"], f"{which} are scaled from it, by what limits each call on both devices"
    if fields["prior"]:
        yield "prior", fields["prior"], "kernel models learned how this device differs from it"
    if fields["exact"]:
        yield "exact", plural(fields["exact"], "call"), "of measured steps, timed one by one: they need no model"
    if device and device["kind"] == "cuda":
        yield "streams", f"{figure(device['measured']['kernel_gap_us'])} us", _streams(device["measured"])
    if fields["host"]:
        yield "host", fields["host"]["name"], fields["host"]["provenance"]
    else:
        yield "host", "none", f"`foretrace calibrate host --out {fields['folder']}` measures it"
    if fields["fabric"]:
        yield "fabric", fields["fabric"]["name"], fields["fabric"]["provenance"]
        yield from _links(fields["fabric"]["links"]) if fields["fabric"]["links"] else ()
    else:
        yield "fabric", "none", "nothing was measured between ranks"


KINDS = {
    "bf16": "GEMMs, 16-bit floats",
    "fp8": "GEMMs, 8-bit floats",
    "grouped": "grouped GEMMs",
    "attention": "attention",
    "flash": "FlashAttention 2",
    "bf16_older": "GEMMs, 16-bit floats, cuBLAS before CUDA 12.6",
}


def _tables(tables: Fields, of: str) -> RenderableType:
    """Published tables by kind of calls; all other calls are scaled by the descriptions of the two GPUs."""
    rows = [
        (KINDS.get(kind, kind), found["table"], found["against"], f"{found['rows']:,}", percent(found["gmae"]),
         percent(found["p90"]), percent(found["held"]))
        for kind, found in tables.items()
    ]  # fmt: skip
    heads = ("<calls", "<published by", "<divided by", "rows", "error", "90 % within", "in range")
    return table(f"fitted on published tables of {of}; errors on layers that were held out", heads, rows)


def _device(device: Fields) -> str:
    clock, size, rate, cache = (figure(device[name]) for name in ("clock_mhz", "memory_gb", "memory_gbps", "l2_mb"))
    attention = f"; {device['attention']} attention" if device["kind"] == "cuda" else ""
    memory = f"{size} GB at {rate} GB/s, {cache} MB of cache"
    units = plural(device["sms"], "core" if device["kind"] == "cpu" else "SM")
    return f"{units} at {clock} MHz, {memory}{attention}"


def _streams(measured: Fields) -> str:
    depth = measured["queue_depth"]
    ahead = f"; the host may be {depth:,} launches ahead" if depth else ""
    return f"between kernels, {figure(measured['launch_latency_us'])} us from a launch to its kernel{ahead}"


def _rates(device: Fields) -> RenderableType:
    reached, measured = device["reached"], device["measured"]
    rates = [
        (f"{dtype} products", peak, measured["tflops"].get(dtype), "TFLOP/s", reached.get(dtype))
        for dtype, peak in device["peak_tflops"].items()
    ]
    rates.append(("memory", device["memory_gbps"], measured["memory_gbps"], "GB/s", reached.get("memory")))
    rows = [[name, figure(peak), figure(seen), unit, percent(share)] for name, peak, seen, unit, share in rates]
    return table("Rates", ["<", "peak", "reached", "<", "share"], rows)


def _families(families: Fields, scaled: bool) -> RenderableType:
    rows = [
        [
            name,
            f["kind"],
            f"{f['measurements']:,}",
            *(percent(f[error]) for error in ("gmae", "mean", "p90")),
            f["source"],
        ]
        for name, f in families.items()
    ]
    whose = " of the GPU that was calibrated" if scaled else ""
    title = (
        f"Kernel models: errors on measurements{whose} that were held out, and where times of this platform come from"
    )
    return table(title, ["<family", "<model", "measurements", "GMAE", "mean", "90th percentile", "<times"], rows)


def _host(host: Fields, top: int | None) -> RenderableType:
    known = [name for name in COMMON_CALLS if name in host["calls"]]
    rows = [[f"between {kind} calls", figure(host["between"][f"{kind}_call"])] for kind in PHASES]
    rows += [[name, figure(host["calls"][name])] for name in known]
    title = f"Host time of common calls, one launch included; {len(host['calls']):,} are known"
    return table(title, ["<", "us"], rows, None if top is None else top + len(PHASES))


def _fabric(fabric: Fields, top: int | None) -> RenderableType:
    rows = [
        [c["kind"], str(c["ranks"]), str(c["nodes"]), figure(c["latency_us"]), figure(c["gbps"]), percent(c["spread"])]
        for c in fabric["curves"]
    ]
    return table("Collectives", ["<kind", "ranks", "nodes", "latency us", "GB/s", "spread"], rows, top)


def fabric_blocks(summary: Document, top: int | None) -> Blocks:
    """A fabric: its links, then what was measured."""
    fields = summary.to_dict()
    yield fact_lines(f"{fields['name']}: {fields['provenance']}", _links(fields["links"]) if fields["links"] else ())
    if fields["curves"]:
        yield _fabric(fields, top)


def _links(links: Fields) -> Iterator[Fact]:
    inside, network = links["inside"], links["network"]
    switch = ", with in-network reduction" if inside["reduces"] else ""
    yield "node", f"{links['gpus_per_node']} {links['gpu']}", links["provenance"]
    yield "inside", f"{figure(inside['gbps'])} GB/s", f"from each GPU, {inside['kind']}{switch}"
    if network:
        cards = f"{plural(network['nics'], 'NIC')} of {figure(network['gbit'])} Gb/s a node, {network['kind']}"
        yield "between", f"{figure(network['latency_us'])} us", cards


def listing_blocks(listing: Document, top: int | None) -> Blocks:
    """The platforms, GPUs and fabrics that there are, all of them."""
    fields = listing.to_dict()
    rows = [[one["name"], one["made"] or UNKNOWN, one["provenance"]] for one in fields["platforms"]]
    yield table(plural(len(rows), "platform"), ["<name", "<made", "<what…"], rows)
    yield _device_list(fields["devices"])
    yield _fabric_list(fields["fabrics"])


def _device_list(found: list[Fields]) -> RenderableType:
    """GPUs that are known by their description alone."""
    figures = ("sms", "clock_mhz", "memory_gb", "memory_gbps", "l2_mb")
    rates = ("float32", "float16")
    rows = [
        [one["name"], *(figure(one[f]) for f in figures), *(figure(one["peak_tflops"].get(rate)) for rate in rates),
         f"own tables, {one['scaled_from']}" if one["tables"] else one["scaled_from"]]
        for one in found
    ]  # fmt: skip
    heads = ["<name", "SMs", "MHz", "GB", "GB/s", "cache MB", *rates, "<kernel times by"]
    title = f"{plural(len(found), 'GPU')} by description, with kernel times scaled from others; GEMMs in TFLOP/s"
    return table(title, heads, rows)


def _fabric_list(found: list[Fields]) -> RenderableType:
    rows = [
        [one["name"], f"{one['ranks']} ranks on {plural(one['nodes'], 'node')}" if one["ranks"] else "not measured",
         str(one["gpus_per_node"]), one["provenance"]]
        for one in found
    ]  # fmt: skip
    return table(plural(len(found), "fabric"), ["<name", "<measured", "GPUs a node", "<what…"], rows)


def comparison_blocks(comparison: Document, top: int | None) -> Blocks:
    """Two platforms, figure by figure, all of them."""
    fields = comparison.to_dict()
    first, second = fields["platforms"]
    rows = [
        [row["part"], row["name"], *(figure(value) for value in row["values"]), row["unit"], figure(row["ratio"])]
        for row in fields["figures"]
    ]
    yield table(f"{first} and {second}", ["<part", "<figure…", first, second, "<", "ratio"], rows)


def measured_families(done: Sequence[MeasuredFamily]) -> RenderableType:
    """What a calibration measured: for each family calls, failures, seconds, and the spread of repeats."""
    rows = [
        [one.family, f"{one.cases:,}", f"{one.failed:,}", f"{one.seconds:.1f}", percent(one.spread)]
        for one in done
        if one.cases + one.failed
    ]
    return table("Measured", ["<family", "calls", "failed", "seconds", "spread"], rows)
