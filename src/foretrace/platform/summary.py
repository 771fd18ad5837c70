"""Summaries of platforms: what `foretrace platform show`, `compare` and `list` print and write as JSON.

The fields of the JSON are documented in docs/platform.md.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from foretrace.errors import ForetraceError
from foretrace.files import read_bounded
from foretrace.platform.device import Device
from foretrace.platform.fabric import Fabric, fabrics
from foretrace.platform.host import Host
from foretrace.platform.hypothetical import RATIOS, RatioIndex, RatioTable, nearest_with_tables
from foretrace.platform.platform import (
    ABOUT,
    DEVICE,
    EXACT,
    FABRIC,
    HOST,
    INDEX,
    MODELS,
    PRIOR,
    PRIOR_FILE,
    About,
    Platform,
    read_about,
)
from foretrace.platform.prior import PriorRecord
from foretrace.platform.registry import (
    CPU,
    REFERENCE,
    device_files,
    find_platform,
    is_described_only,
    is_imported,
    load_platform,
    platform_folders,
    split_factors,
    user_platforms,
)
from foretrace.platform.typed_json import MAX_TIMED_BYTES, read_as

COMMON_CALLS = (
    "aten::mm", "aten::addmm", "aten::bmm", "aten::add", "aten::add_", "aten::mul", "aten::copy_", "aten::_to_copy",
    "aten::cat", "aten::sum", "aten::gelu", "aten::relu", "aten::_softmax", "aten::native_layer_norm",
    "aten::cudnn_batch_norm", "aten::convolution", "aten::convolution_backward", "aten::embedding",
    "aten::_embedding_bag", "aten::_scaled_dot_product_flash_attention", "aten::_foreach_add_", "aten::_fused_adamw_",
    "aten::view", "aten::transpose",
)  # fmt: skip
"""Calls that most steps are made of."""
TABLE_KINDS = {"matrix": ("bf16", "fp8", "grouped"), "attention": ("attention", "flash")}
"""Kinds of calls in published tables, by kernel family."""
CARRIED = "carried over"
"""Stands for the kind of the model of a family that is the prior's."""
ON_PRIOR = {"difference": "measured, as a difference to", "prior": "measured, and no better than"}
"""By kind of model: how a family that was measured goes with the prior."""
Fields = dict[str, Any]


@dataclass(frozen=True)
class FittedModel:
    """A kernel family in the index of a platform's models."""

    measurements: int
    kind: str
    gmae: float
    """Geometric mean of the relative error on held-out calls; then their mean and their 90th percentile."""
    mean: float
    p90: float
    others: dict[str, float] = field(default_factory=dict)
    """The geometric mean of the estimators that were not chosen."""


@dataclass(frozen=True)
class Summary:
    """A platform with as many parts as were measured; or a hypothetical one."""

    about: About
    name: str
    folder: Path
    device: Device | None
    host: Host | None
    fabric: Fabric | None
    exact: int = 0
    """Number of exactly timed calls."""
    scaled_from: str | None = None
    """The device that kernel times are scaled from."""
    tables: dict[str, RatioTable] = field(default_factory=dict)
    """By kind of calls, the published tables that its times are fitted on."""
    tables_of: str = ""
    """The GPU of these tables: its own name, or the GPU that it is scaled from."""
    prior: PriorRecord | None = None
    """What its kernel models were calibrated from, if not from nothing."""

    @classmethod
    def named(cls, name: str | Path) -> Summary:
        """Of a platform by name or folder, as in `foretrace.platform.registry.load_platform`."""
        base, factors = split_factors(str(name))
        folder = None if is_described_only(base) else find_platform(base)
        if factors or folder is None or is_imported(folder):
            return cls.of(load_platform(name))
        about = read_about(folder)
        device, host, fabric, exact = (folder / part for part in (DEVICE, HOST, FABRIC, EXACT))
        prior = folder / MODELS / PRIOR / PRIOR_FILE
        return cls(
            about,
            about.name,
            folder,
            Device.read(device) if device.exists() else None,
            Host.read(host) if host.exists() else None,
            Fabric.read(fabric) if fabric.exists() else None,
            _timed_calls(exact) if exact.exists() else 0,
            prior=read_as(PriorRecord, prior) if prior.is_file() else None,
        )

    @classmethod
    def of(cls, platform: Platform) -> Summary:
        """Of a hypothetical platform."""
        scaling = platform.cross_device
        scaled_from = scaling.source.name if scaling else None
        index = scaling.tables if scaling else None
        parts = platform.device, platform.host, platform.fabric
        tables = index.kinds if index else {}
        own = platform.name if scaling and scaling.ratios else scaled_from or ""
        return cls(
            platform.about,
            platform.name,
            platform.folder,
            *parts,
            scaled_from=scaled_from,
            tables=tables,
            tables_of=own,
        )

    def source_of(self, family: str, kind: str = "") -> str:
        """Where the times of a kernel family with a model of this kind come from: measured there, published tables, or
        scaled.

        >>> h100 = Summary.named("h100")
        >>> h100.source_of("matrix"), h100.source_of("norms"), Summary.named("h200").source_of("norms")
        ('published tables, else scaled from h200', 'scaled from h200', 'measured')
        """
        if self.prior and kind == CARRIED:
            return f"not measured: {self.prior.words}"
        if self.prior and kind in ON_PRIOR:
            return f"{ON_PRIOR[kind]} {self.prior.words}"
        if self.scaled_from is None:
            return "measured"
        if not any(kind in self.tables for kind in TABLE_KINDS.get(family, ())):
            return f"scaled from {self.scaled_from}"
        whose = "" if self.tables_of == self.name else f" of {self.tables_of}"
        return f"published tables{whose}, else scaled from {self.scaled_from}"

    def to_dict(self) -> Fields:
        """The fields of its JSON; null for a part that was not measured."""
        index = self.folder / INDEX
        return {
            "name": self.name,
            "folder": str(self.folder),
            "made": self.about.made,
            "provenance": self.about.provenance,
            "versions": self.about.versions,
            "device": self.device and device_fields(self.device),
            "host": self.host and host_fields(self.host),
            "fabric": self.fabric and fabric_fields(self.fabric),
            "families": self._families(index) if index.exists() else {},
            "prior": self.prior.name if self.prior else None,
            "exact": self.exact,
            "carried_from": self.scaled_from,
            "tables": {kind: asdict(table) for kind, table in self.tables.items()},
            "tables_of": self.tables_of if self.tables else None,
        }

    def _families(self, index: Path) -> Fields:
        """The fitted families, and those that are the prior's: how many calls of it that was fitted on, no errors."""
        fitted = family_fields(index)
        carried = index.parent / PRIOR / index.name
        others = family_fields(carried) if self.prior and carried.exists() else {}
        unknown = {"measurements": 0, "kind": CARRIED, "gmae": None, "mean": None, "p90": None, "others": {}}
        known = {**fitted, **{name: unknown for name in others if name not in fitted}}
        return {name: {**fields, "source": self.source_of(name, fields["kind"])} for name, fields in known.items()}


def _timed_calls(path: Path) -> int:
    try:
        return len(json.loads(read_bounded(path, MAX_TIMED_BYTES, "timed calls")))
    except (OSError, EOFError, zlib.error, ValueError, TypeError, RecursionError) as error:
        raise ForetraceError(
            f"{path} does not hold timed calls ({error})", "Restore it, or fit it again: foretrace calibrate fit."
        ) from None


def device_fields(device: Device) -> Fields:
    """A device, and the share of each of its peaks that was reached."""
    peaks = {**device.peak_tflops, "memory": device.memory_gbps}
    best: dict[str, float] = dict(device.measured.tflops)
    if device.measured.memory_gbps:
        best["memory"] = device.measured.memory_gbps
    return {**asdict(device), "reached": {name: rate / peaks[name] for name, rate in best.items() if name in peaks}}


def host_fields(host: Host) -> Fields:
    """A host: time of a call with one launch, and between calls."""
    calls = {name: cost.to_launch + cost.launch + cost.after for name, cost in sorted(host.calls.items())}
    return {
        "name": host.name,
        "provenance": host.provenance,
        "calls": calls,
        "between": asdict(host.before),
        "common": host.common,
    }


def fabric_fields(fabric: Fabric) -> Fields:
    """A fabric: its curves without their knots."""
    curves = [{key: value for key, value in asdict(curve).items() if key != "knots"} for curve in fabric.curves]
    links = asdict(fabric.links) if fabric.links else None
    shared = {"crowd": [asdict(one) for one in fabric.crowd], "beside": fabric.beside and asdict(fabric.beside)}
    return {"name": fabric.name, "provenance": fabric.provenance, "curves": curves, "links": links, **shared}


def family_fields(path: Path) -> Fields:
    """The index of a device's kernel models."""
    return {name: asdict(fitted) for name, fitted in read_as(dict[str, FittedModel], path).items()}


class FabricSummary:
    """A shipped fabric.

    >>> FabricSummary("h100-8x").to_dict()["links"]["gpus_per_node"]
    8
    """

    def __init__(self, name: str) -> None:
        self.fabric = Fabric.named(name)

    def to_dict(self) -> Fields:
        """The fields of its JSON."""
        return fabric_fields(self.fabric)


@dataclass(frozen=True)
class Comparison:
    """Two platforms, figure by figure: every figure that both have, and its ratio.

    >>> same = Comparison(Summary.named("h200"), Summary.named("h200")).to_dict()
    >>> {row["ratio"] for row in same["figures"]}
    {1.0}
    """

    first: Summary
    second: Summary

    def to_dict(self) -> Fields:
        """The fields of its JSON."""
        one, other = self.first.to_dict(), self.second.to_dict()
        values = {(part, name, unit): value for part, name, unit, value in _figures(other)}
        rows = [
            {
                "part": part,
                "name": name,
                "unit": unit,
                "values": [value, values[part, name, unit]],
                "ratio": values[part, name, unit] / value if value else None,
            }
            for part, name, unit, value in _figures(one)
            if values.get((part, name, unit), 0.0) or (value and (part, name, unit) in values)
        ]
        return {"platforms": [one["name"], other["name"]], "figures": rows}


def _figures(fields: Fields) -> Iterator[tuple[str, str, str, float]]:
    """Part, name, unit and value of each figure of a platform that is worth comparing."""
    parts = {"device": _device_figures, "host": _host_figures, "fabric": _fabric_figures}
    for part, of in parts.items():
        if fields[part]:
            for name, unit, value in of(fields[part]):
                if value is not None:
                    yield part, name, unit, float(value)


def _device_figures(device: Fields) -> Iterator[tuple[str, str, float | None]]:
    yield "processors", "", device["sms"]
    yield "clock", "MHz", device["clock_mhz"]
    yield "memory", "GB", device["memory_gb"]
    yield "cache", "MB", device["l2_mb"]
    yield "memory rate, peak", "GB/s", device["memory_gbps"]
    yield "memory rate, reached", "GB/s", device["measured"]["memory_gbps"]
    for dtype, rate in device["peak_tflops"].items():
        yield f"{dtype} products, peak", "TFLOP/s", rate
    for dtype, rate in device["measured"]["tflops"].items():
        yield f"{dtype} products, reached", "TFLOP/s", rate
    yield "gap between kernels", "us", device["measured"]["kernel_gap_us"]
    yield "launch to kernel", "us", device["measured"]["launch_latency_us"]


def _host_figures(host: Fields) -> Iterator[tuple[str, str, float | None]]:
    for phase in ("forward", "backward", "optimizer"):
        yield f"between {phase} calls", "us", host["between"][f"{phase}_call"]
    for name, us in host["calls"].items():
        if name in COMMON_CALLS:
            yield name, "us", us


def _fabric_figures(fabric: Fields) -> Iterator[tuple[str, str, float | None]]:
    for curve in fabric["curves"]:
        where = f"{curve['kind']}, {curve['ranks']} ranks on {curve['nodes']} nodes"
        yield f"{where}: latency", "us", curve["latency_us"]
        yield f"{where}: bandwidth", "GB/s", curve["gbps"]


class Listing:
    """The platforms, the devices and the fabrics that have a name.

    >>> [one["name"] for one in Listing().to_dict()["platforms"]][-1]
    'h200'
    """

    def to_dict(self) -> Fields:
        """The fields of its JSON."""
        found = {CPU: user_platforms() / CPU, **platform_folders()}
        return {
            "platforms": [_platform_entry(name, folder) for name, folder in sorted(found.items())],
            "devices": [device_entry(Device.named(name)) for name in device_files() if name not in found],
            "fabrics": [fabric_entry(Fabric.read(path)) for _, path in sorted(fabrics().items())],
        }


def _platform_entry(name: str, folder: Path) -> Fields:
    made, provenance = "", "the CPU of this machine, not calibrated: `foretrace calibrate cpu` measures it"
    if (folder / ABOUT).exists():
        try:
            about = read_about(folder)
            made, provenance = about.made, about.provenance
        except ForetraceError as error:
            provenance = error.what.replace(f"{folder}/", "")
    return {"name": name, "folder": str(folder), "made": made, "provenance": provenance}


def device_entry(device: Device) -> Fields:
    """A GPU by its description, the kinds of calls that published tables of it tell, and where other times come from.

    >>> entry = device_entry(Device.named("b300"))
    >>> entry["tables"], entry["scaled_from"]
    ([], 'b200')
    """
    shown = ("name", "sms", "clock_mhz", "memory_gb", "memory_gbps", "l2_mb", "peak_tflops", "provenance")
    index, reference = RatioIndex.of(RATIOS / device.name), Device.named(REFERENCE)
    return {
        **{name: getattr(device, name) for name in shown},
        "tables": list(index.kinds) if index else [],
        "scaled_from": (reference if index else nearest_with_tables(device, reference) or reference).name,
    }


def fabric_entry(fabric: Fabric) -> Fields:
    """A fabric: how many ranks and nodes it was measured on, and its provenance.

    >>> entry = fabric_entry(Fabric.named("h100-2x8-p5"))
    >>> entry["name"], entry["ranks"], entry["nodes"], entry["gpus_per_node"]
    ('h100-2x8-p5', 16, 2, 8)
    """
    return {
        "name": fabric.name,
        "ranks": max((curve.ranks for curve in fabric.curves), default=0),
        "nodes": max((curve.nodes for curve in fabric.curves), default=0),
        "gpus_per_node": fabric.gpus_per_node,
        "provenance": fabric.provenance,
    }
