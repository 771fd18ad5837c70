"""Small platforms, made up."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from foretrace.platform.device import Device, Measured
from foretrace.platform.fabric import Curve, Fabric
from foretrace.platform.host import TERMS, BetweenCalls, CallCost, Host
from foretrace.platform.platform import About, write_about
from foretrace.platform.typed_json import write

CURVE = Curve("all_reduce", 8, 1, 20.0, 100.0, 1.0, ((1024.0, 1.0),), 0.02)


def host(us: float = 6.0, name: str = "mine") -> Host:
    """A host that takes so long up to a launch, and as long for everything else together."""
    cost = CallCost(to_launch=us, launch=us / 2, between=us / 2, after=us / 2, tensor=0.0, spread=0.1)
    before = BetweenCalls(*[us / 4] * len(TERMS))
    return Host(name, {"aten::mm": cost, "aten::odd": cost}, cost, cost, before, 0.1, "made up")


def device(memory_gbps: float = 1000.0) -> Device:
    """A device that reaches four fifths of its peaks."""
    best = Measured(1.0, 2.0, 1000, 0.8 * memory_gbps, {"float32": 8.0}, "made up")
    peaks = {"float32": 10.0, "bfloat16": 100.0}
    return Device("toy", "Toy GPU", 10, 1000.0, 500.0, 16.0, memory_gbps, 4.0, peaks, "made up", measured=best)


def platform_folder(folder: Path, us: float = 6.0, without: tuple[str, ...] = ("fabric",)) -> Path:
    """A platform, without some of its parts."""
    (folder / "models").mkdir(parents=True)
    write_about(folder, About(folder.name, "2026-11-15", "made up", {"torch": "2.11", "driver": "580"}))
    if "device" not in without:
        write(folder / "device.json", asdict(device()))
        fitted = {"measurements": 2000, "gmae": 0.021, "mean": 0.04, "p90": 0.09, "kind": "trees"}
        (folder / "models" / "index.json").write_text(json.dumps({"matrix": fitted}))
    if "host" not in without:
        host(us, folder.name).write(folder / "host.json")
    if "fabric" not in without:
        Fabric(folder.name, (CURVE,), "made up").write(folder / "fabric.json")
    return folder
