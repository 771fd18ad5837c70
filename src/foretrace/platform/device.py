"""A device as its maker describes it: the ceilings that measured times are held against."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from foretrace.graph import ForetraceError

MACHINES = Path(__file__).parent / "machines"


@dataclass(frozen=True)
class Device:
    """Processors, clocks, memory and peak rates of one device.

    >>> h200 = Device.named("h200")
    >>> h200.sms, h200.memory_gbps, h200.peak_tflops["bfloat16"]
    (132, 4800, 989)
    """

    name: str
    matches: str
    """What the driver calls it."""
    sms: int
    clock_mhz: float
    memory_clock_mhz: float
    memory_gb: float
    memory_gbps: float
    l2_mb: float
    peak_tflops: dict[str, float]
    """Dense rate by dtype; ``tf32`` is float32 on the matrix units."""
    provenance: str

    @classmethod
    def read(cls, path: Path) -> Device:
        """The device that a file describes; a damaged file says which field is wrong."""
        try:
            facts = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise ForetraceError(f"{path} is not a device description ({error})", "Restore it.") from None
        if not isinstance(facts, dict):
            raise ForetraceError(f"{path} is not a device description", "Restore it.")
        return cls(**_checked(facts, path))

    @classmethod
    def named(cls, name: str) -> Device:
        """A device that comes with Foretrace."""
        path = MACHINES / f"{name}.json"
        if not path.is_file():
            known = ", ".join(sorted(p.stem for p in MACHINES.glob("*.json")))
            raise ForetraceError(f"no device is called {name!r}", f"Known are: {known}.")
        return cls.read(path)


def _checked(facts: dict[str, Any], path: Path) -> dict[str, Any]:
    names = {field.name: field.type for field in fields(Device)}
    for unknown in facts.keys() - names.keys():
        raise ForetraceError(f"{path}: the field {unknown!r} means nothing", "Remove it, or correct its name.")
    for name, kind in names.items():
        if name not in facts:
            raise ForetraceError(f"{path}: the field {name!r} is missing", "Add it.")
        if not _fits(facts[name], str(kind)):
            raise ForetraceError(f"{path}: the field {name!r} holds {facts[name]!r}", f"It should be {kind}.")
    return facts


def _fits(value: Any, kind: str) -> bool:
    if kind == "str":
        return isinstance(value, str)
    if kind.startswith("dict"):
        return isinstance(value, dict) and all(_positive(number) for number in value.values())
    return _positive(value) and (kind != "int" or isinstance(value, int))


def _positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
