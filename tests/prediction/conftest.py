"""A platform whose prices are plain numbers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from foretrace.cost_models.host.pricing import HostCosts
from foretrace.cost_models.kernels.roofline import FALLBACK, MODEL, RooflineFallback
from foretrace.graph import Graph
from tests.prediction.by_hand import device

HOST_US = {"before": 1.0, "gap": 1.0, "to_launch": 2.0, "launch": 3.0, "between": 0.5, "after": 1.0}
KERNEL_US = 10.0
PRICED = ("aten::mm", "aten::strange", "mine::strange")


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Each call costs the host 1 + 2 + 3 + 1 us; products launch a kernel of 10 us, unknown ops one by roofline."""
    RooflineFallback(start_us=1.0, slower=1.0, low=0.5, high=2.0).write(tmp_path)

    def price_host(calls: Graph, rows: np.ndarray, launches: np.ndarray, host: object) -> Any:
        columns: dict[str, Any] = {name: np.full(len(rows), us) for name, us in HOST_US.items()}
        return HostCosts(**columns, cold_penalty=np.zeros(len(rows)), spread=np.full(len(rows), 0.2), common=0.05)

    def price_kernels(calls: Graph, rows: np.ndarray, platform: object) -> Any:
        names = [calls.ops.names[code] for code in calls.ops.name[rows]]
        launching = [row for row, name in zip(rows.tolist(), names) if name in PRICED]
        time = np.full(len(launching), KERNEL_US)
        source = [MODEL if names[row] == "aten::mm" else FALLBACK for row in launching]
        return SimpleNamespace(
            op=np.array(launching, np.int32), name=[f"{names[row]} kernel" for row in launching], low=0.9 * time,
            typical=time, high=1.1 * time, source=np.array(source, np.int8),
        )  # fmt: skip

    monkeypatch.setattr("foretrace.prediction.priced_step.price_host", price_host)
    monkeypatch.setattr("foretrace.prediction.modelled_work.price_kernels", price_kernels)
    parts = {"host": None, "fabric": None, "cross_device": None, "stack": None, "models": tmp_path}
    return SimpleNamespace(name="by hand", step_share=1.0, device=device(gap=1.0, latency=2.0), **parts)
