"""A platform in words and figures, of as many parts as were measured: what `foretrace platform show` shows."""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from foretrace.files import read_bounded
from foretrace.graph import ForetraceError
from foretrace.platform import folder as files
from foretrace.platform.device import Device
from foretrace.platform.fabric import Fabric, fabrics
from foretrace.platform.files import MAX_TIMED_BYTES, read_as
from foretrace.platform.host import Host
from foretrace.platform.platform import Platform

COMMON = (
    "aten::mm", "aten::addmm", "aten::bmm", "aten::add", "aten::add_", "aten::mul", "aten::copy_", "aten::_to_copy",
    "aten::cat", "aten::sum", "aten::gelu", "aten::relu", "aten::_softmax", "aten::native_layer_norm",
    "aten::cudnn_batch_norm", "aten::convolution", "aten::convolution_backward", "aten::embedding",
    "aten::_embedding_bag", "aten::_scaled_dot_product_flash_attention", "aten::_foreach_add_", "aten::_fused_adamw_",
    "aten::view", "aten::transpose",
)  # fmt: skip
"""Calls that most steps are made of."""


@dataclass(frozen=True)
class Fitted:
    """What is known of a family's model."""

    measurements: int
    kind: str
    gmae: float
    """Geometric mean of the relative error on calls it was not fitted on; then their mean, their 90th percentile."""
    mean: float
    p90: float
    others: dict[str, float] = field(default_factory=dict)
    """The geometric mean of the kinds of models that were not chosen."""


class Summary:
    """What is known of the platform in a folder.

    >>> words = Summary.named("h200").to_dict()
    >>> words["device"]["sms"], words["fabric"]
    (132, None)
    """

    def __init__(self, folder: Path) -> None:
        self.about = files.read_about(folder)
        self.folder = folder

    @classmethod
    def named(cls, name: str | Path) -> Summary:
        """Of a platform by its name or its folder."""
        return cls(files.find(name))

    def to_dict(self) -> dict[str, Any]:
        """Its words, as documented in docs/platform.md; null for a part that was not measured."""
        return {
            "name": self.about.name,
            "folder": str(self.folder),
            "made": self.about.made,
            "provenance": self.about.provenance,
            "versions": self.about.versions,
            "device": self._part(files.DEVICE, lambda path: device_words(Device.read(path))),
            "host": self._part(files.HOST, lambda path: host_words(Host.read(path))),
            "fabric": self._part(files.FABRIC, lambda path: fabric_words(Fabric.read(path))),
            "families": self._part(files.INDEX, family_words) or {},
            "exact": self._part(files.EXACT, timed_calls) or 0,
            "carried_from": None,
        }

    def _part(self, name: str, words: Any) -> Any:
        path = self.folder / name
        return words(path) if path.exists() else None


class OnPaper:
    """What is known of a platform that stands nowhere: a GPU by its description, or one with parts of it scaled.

    >>> words = OnPaper(Platform.named("a100")).to_dict()
    >>> words["device"]["sms"], words["carried_from"]
    (108, 'h200')
    """

    def __init__(self, platform: Platform) -> None:
        self.platform = platform

    def to_dict(self) -> dict[str, Any]:
        """Its words, as `Summary.to_dict` gives them; the models are those of the device that was measured."""
        platform = self.platform
        return {
            "name": platform.name,
            "folder": str(platform.folder),
            "made": platform.about.made,
            "provenance": platform.about.provenance,
            "versions": platform.about.versions,
            "device": device_words(platform.device),
            "host": host_words(platform.host),
            "fabric": fabric_words(platform.fabric) if platform.fabric else None,
            "families": family_words(platform.folder / files.INDEX),
            "exact": 0,
            "carried_from": platform.carry.source.name if platform.carry else None,
        }


class FabricSummary:
    """What is known of a fabric that comes with Foretrace.

    >>> FabricSummary("h100-8x").to_dict()["links"]["gpus_per_node"]
    8
    """

    def __init__(self, name: str) -> None:
        self.fabric = Fabric.named(name)

    def to_dict(self) -> dict[str, Any]:
        """Its words, as documented in docs/platform.md."""
        return fabric_words(self.fabric)


def device_words(device: Device) -> dict[str, Any]:
    """A device, and what share of its peaks was reached.

    >>> words = device_words(Device.read(files.SHIPPED / "h200" / files.DEVICE))
    >>> 0.5 < words["reached"]["memory"] < 1
    True
    """
    peaks = {**device.peak_tflops, "memory": device.memory_gbps}
    best: dict[str, float] = dict(device.measured.tflops)
    if device.measured.memory_gbps:
        best["memory"] = device.measured.memory_gbps
    return {**asdict(device), "reached": {name: rate / peaks[name] for name, rate in best.items() if name in peaks}}


def fabric_words(fabric: Fabric) -> dict[str, Any]:
    """A fabric: its curves without their knots."""
    curves = [{key: value for key, value in asdict(curve).items() if key != "knots"} for curve in fabric.curves]
    links = asdict(fabric.links) if fabric.links else None
    shared = {"crowd": [asdict(one) for one in fabric.crowd], "beside": fabric.beside and asdict(fabric.beside)}
    return {"name": fabric.name, "provenance": fabric.provenance, "curves": curves, "links": links, **shared}


def family_words(path: Path) -> dict[str, Any]:
    """The index of a device's models."""
    return {name: asdict(fitted) for name, fitted in read_as(dict[str, Fitted], path).items()}


def timed_calls(path: Path) -> int:
    """How many calls of steps were timed as they are."""
    try:
        return len(json.loads(read_bounded(path, MAX_TIMED_BYTES, "timed calls")))
    except (OSError, EOFError, zlib.error, ValueError, TypeError, RecursionError) as error:
        raise ForetraceError(
            f"{path} does not hold timed calls ({error})", "Restore it, or fit it again: foretrace calibrate fit."
        ) from None


def host_words(host: Host) -> dict[str, Any]:
    """A host: what it takes for a call with one launch, and between calls."""
    calls = {name: cost.to_launch + cost.launch + cost.after for name, cost in sorted(host.calls.items())}
    return {
        "name": host.name,
        "provenance": host.provenance,
        "calls": calls,
        "between": asdict(host.before),
        "common": host.common,
    }


class Listing:
    """The platforms, the GPUs and the fabrics that have a name.

    >>> [one["name"] for one in Listing().to_dict()["platforms"]][-1]
    'h200'
    """

    def to_dict(self) -> dict[str, Any]:
        """Their words, as documented in docs/platform.md."""
        found = {files.HERE: files.user_folder() / files.HERE, **files.platforms()}
        return {
            "platforms": [_entry(name, folder) for name, folder in sorted(found.items())],
            "devices": [device_entry(Device.named(name)) for name in files.machines() if name not in found],
            "fabrics": [fabric_entry(Fabric.read(path)) for _, path in sorted(fabrics().items())],
        }


def device_entry(device: Device) -> dict[str, Any]:
    """A GPU by its description.

    >>> entry = device_entry(Device.named("a100"))
    >>> entry["name"], entry["memory_gb"]
    ('a100', 80)
    """
    words = ("name", "sms", "clock_mhz", "memory_gb", "memory_gbps", "l2_mb", "peak_tflops", "provenance")
    return {word: getattr(device, word) for word in words}


def fabric_entry(fabric: Fabric) -> dict[str, Any]:
    """A fabric that can be combined with any platform: on how many GPUs it was measured, and whence.

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


def _entry(name: str, folder: Path) -> dict[str, Any]:
    if not (folder / files.ABOUT).exists():
        return {"name": name, "folder": str(folder), "made": "", "provenance": "this machine, measured on first use"}
    try:
        about = files.read_about(folder)
    except ForetraceError as error:
        return {"name": name, "folder": str(folder), "made": "", "provenance": error.what.replace(f"{folder}/", "")}
    return {"name": name, "folder": str(folder), "made": about.made, "provenance": about.provenance}
