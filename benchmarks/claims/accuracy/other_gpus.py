"""Claim: on GPUs that nobody measured, whole models are predicted within 10 % on average by what an H200 tells of them.

NeuSight published what language models take on eleven GPUs, in float32: inference, or forward and backward. Each is
sketched, and predicted on the GPU's description. Of what descriptions do not tell, one constant comes from a published
rate of products, and two are fitted on the other chips: what a GPU is scored by never saw its rows, nor those of
another board with the same chip. Beside it the roofline of the description, and NeuSight's own predictions, which were
trained on kernels of most of these GPUs.

The form of all this, and which published rates stand in the descriptions, was decided with these rows in sight: those
of short tests on boards that do not hold their clock (T4, P4) were not taken.

Left out: models compiled with Triton, jobs of several GPUs, and one model whose sizes were not published.

    python -m benchmarks.claims.accuracy.other_gpus [--write]

``--write`` keeps the constants, fitted on all rows, for what Foretrace predicts.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lib.eager_transformers import SIZES, make
from benchmarks.lib.process import shared
from benchmarks.lib.table import keep
from foretrace.analysis.dispatched import dispatched_calls
from foretrace.cost_models.kernels.pricing import price_kernels
from foretrace.graph import Graph
from foretrace.graph.operators import launches_nothing
from foretrace.platform.device import Device
from foretrace.platform.hypothetical import CONSTANTS, CrossDeviceConstants, CrossDeviceScaling, power_budget_pj
from foretrace.platform.platform import Platform
from foretrace.platform.typed_json import write
from foretrace.prediction.predict import predict_on_platform
from foretrace.prediction.rates import works
from foretrace.record.sketch.sketch import sketch

MEAN = 10.0
"""Percent off, over all rows."""
NEUSIGHT = Path(__file__).resolve().parents[2] / "data" / "neusight_errors.json"
CHIPS = {
    "NVIDIA_A100-PCIE-40GB": ("a100-pcie-40gb", "GA100"),
    "NVIDIA_A100_80GB_PCIe": ("a100-pcie", "GA100"),
    "NVIDIA_L4": ("l4", "AD104"),
    "Tesla_P100-PCIE-16GB": ("p100", "GP100"),
    "Tesla_P4": ("p4", "GP104"),
    "Tesla_T4": ("t4", "TU104"),
    "Tesla_V100-PCIE-32GB": ("v100-pcie", "GV100"),
    "AMD_Instinct_MI100": ("mi100", "Arcturus"),
    "AMD_Instinct_MI210": ("mi210", "Aldebaran"),
    "AMD_Instinct_MI250": ("mi250", "Aldebaran"),
}
"""Our names of the published GPUs, and their chips."""
SHARES = np.array([0.25, 0.5, 1.0, 1.5])
"""Of the H200's reach, that products keep: times in between follow from these."""
H200 = Platform.named("h200")
NARROW = Device.named("a100-40gb")
"""A GPU with half as many lanes in a processor, of which somebody published what it reaches in float32."""
SLOT_W = 75.0
"""A board that may draw no more does not hold its clock: it tells what multiplying takes."""
DRAWN_APART = 1.2
"""A step's range is so much narrower than that of its kernels, whose errors cancel in part."""


@dataclass(frozen=True)
class Row:
    """A model on a GPU."""

    published: str
    """What NeuSight calls the GPU."""
    case: str
    measured_ms: float
    curve: Any
    """A cubic: the logarithm of what is predicted over that of the share that products keep."""

    @property
    def chip(self) -> str:
        """That the board carries."""
        return CHIPS[self.published][1]

    @property
    def platform(self) -> Platform:
        """The GPU by its description."""
        return Platform.named(CHIPS[self.published][0])

    def best_share(self) -> float:
        """The share that meets the measurement best."""
        logs = np.linspace(np.log(SHARES[0]), np.log(SHARES[-1]), 200)
        return float(np.exp(logs[np.argmin(np.abs(np.polyval(self.curve, logs) - np.log(self.measured_ms)))]))


def sketched(case: str) -> Graph | None:
    """The calls of a model; None for one that is not among ours."""
    model, *how = case.split("-")
    if model not in SIZES or len(how) != 3:
        return None
    return sketch(partial(make, model, how[0] == "train", int(how[1]), int(how[2])), device="cuda")


def curve(calls: Graph, platform: Platform) -> Any:
    """The device time of a model over the share that products keep; these models keep every GPU busy."""
    assert platform.cross_device
    rows, times = np.arange(len(calls.ops), dtype=np.int32), []
    for share in SHARES:
        scaling = replace(platform.cross_device, gemm=float(share))
        costs = price_kernels(calls, rows, replace(platform, cross_device=scaling))
        times.append(float((costs.typical + platform.device.measured.kernel_gap_us).sum()) / 1e3)
    return np.polyfit(np.log(SHARES), np.log(times), len(SHARES) - 1)


def read_rows(graphs: dict[str, Graph]) -> list[Row]:
    """The published times of models that were sketched."""
    with (shared("public/neusight") / "e2e_labels.csv").open() as file:
        found = [line for line in csv.DictReader(file) if line["case"] in graphs and line["device"] in CHIPS]
    calls = {case: dispatched_calls(graph).calls for case, graph in graphs.items()}
    return [
        Row(
            line["device"],
            line["case"],
            float(line["e2e_latency"]),
            curve(calls[line["case"]], Platform.named(CHIPS[line["device"]][0])),
        )
        for line in found
    ]


def fitted(rows: Sequence[Row]) -> CrossDeviceConstants:
    """What descriptions do not tell, from the share that meets most rows of each chip."""
    gpus = {row.published: row.platform.device for row in rows}
    shares = {gpu: float(np.median([row.best_share() for row in rows if row.published == gpu])) for gpu in gpus}
    ours = {gpu: device for gpu, device in gpus.items() if device.maker == H200.device.maker}
    slots = {gpu: device for gpu, device in ours.items() if device.power_w and device.power_w <= SLOT_W}
    others = _mean([share for gpu, share in shares.items() if gpu not in ours])
    energy = _mean([power_budget_pj(device) / shares[gpu] for gpu, device in slots.items()])
    return replace(CrossDeviceConstants.shipped(), narrow=narrow(), other_maker=others, energy_pj=energy)


def narrow() -> float:
    """How much more of its float32 peak a GPU with half as many lanes in a processor reaches."""
    known, ours = (device.measured.tflops["float32"] / device.peak("float32") for device in (NARROW, H200.device))
    return known / ours


def _mean(values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))


def scored(row: Row, graph: Graph, constants: CrossDeviceConstants) -> dict[str, Any]:
    """A model on a GPU: what is predicted with these constants, and by the roofline."""
    platform = replace(
        row.platform, cross_device=CrossDeviceScaling.between(H200.device, row.platform.device, constants)
    )
    forecast = predict_on_platform(graph, platform)
    calls, device = dispatched_calls(graph).calls, platform.device
    busy = [number for number, op in enumerate(calls.ops) if not launches_nothing(op, device.kind)]
    roofline = sum(work.us(device) for _, work, _ in works(calls, busy, device)) / 1e3
    return {
        "gpu": platform.name,
        "model": row.case,
        "measured ms": round(row.measured_ms, 1),
        "predicted ms": round(forecast.step_ms, 1),
        "off %": round(100 * (forecast.step_ms / row.measured_ms - 1), 1),
        "in range": bool(forecast.low_ms <= row.measured_ms <= forecast.high_ms),
        "roofline off %": round(100 * (roofline / row.measured_ms - 1), 1),
        "NeuSight off %": json.loads(NEUSIGHT.read_text())["percent"].get(row.published, {}).get(row.case),
    }


def by_gpu(table: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over the models of each GPU, and over all rows."""
    gpus = {gpu: [one for one in table if one["gpu"] == gpu] for gpu in dict.fromkeys(one["gpu"] for one in table)}
    return [
        {
            "gpu": gpu,
            "models": len(ours),
            "mean error %": round(float(np.mean([abs(one["off %"]) for one in ours])), 1),
            "on average off by %": round(float(np.mean([one["off %"] for one in ours])), 1),
            "in range %": round(100 * float(np.mean([one["in range"] for one in ours]))),
            "roofline %": round(float(np.mean([abs(one["roofline off %"]) for one in ours])), 1),
            "NeuSight %": _published(ours),
            "by model": {one["model"]: one for one in ours},
        }
        for gpu, ours in {**gpus, "all": list(table)}.items()
    ]


def _published(rows: Sequence[dict[str, Any]]) -> float | None:
    known = [row["NeuSight off %"] for row in rows if row["NeuSight off %"] is not None]
    return round(float(np.mean(known)), 1) if known else None


def write_constants(rows: Sequence[Row], table: Sequence[dict[str, Any]]) -> None:
    """Keep what all rows say; how far times are off is seen on chips that were left out."""
    ratios = [one["predicted ms"] / one["measured ms"] for one in table]
    spread = DRAWN_APART * np.quantile(np.abs(np.log(ratios)), 0.8) / 1.2816
    known = replace(
        fitted(rows),
        spread=float(spread),
        provenance=f"narrow: {NARROW.name}, {NARROW.measured.provenance}; energy_pj, other_maker, spread: {len(rows)} "
        f"times of whole models on {len({row.published for row in rows})} GPUs that NeuSight published "
        "(sitar-lab/NeuSight); start: the shorter kernels of two published V100 traces (a DLRM, a Megatron), and of "
        "one of an MI300X; other_spread: by how much that one's kernels were off; start_spread: by how much the "
        "shortest kernels of nine published traces of six GPUs are off; link_spread: copies to and from the host in "
        "seven of them; table_spread: GEMMs of a Megatron trace (8 A100) and of three H100 traces against published "
        "tables; other_attention, other_attention_tile_us: attention of PyTorch on an MI300X, "
        "midiareshadi/attn-dsl-bench (results/raw/sweep_v1.csv, MIT)",
    )
    write(CONSTANTS, {key: float(f"{v:.3g}") if isinstance(v, float) else v for key, v in asdict(known).items()})


def main() -> int:
    with (shared("public/neusight") / "e2e_labels.csv").open() as file:
        cases = sorted({line["case"] for line in csv.DictReader(file)})
    graphs = {case: graph for case in cases if (graph := sketched(case)) is not None}
    rows = read_rows(graphs)
    left_out = {chip: fitted([row for row in rows if row.chip != chip]) for chip in {row.chip for row in rows}}
    table = [scored(row, graphs[row.case], left_out[row.chip]) for row in rows]
    for one in table:
        print("  ".join(f"{value!s:>14}" for value in one.values()))
    summary = by_gpu(table)
    keep("other_gpus", summary, hide=["by model"])
    if "--write" in sys.argv[1:]:
        write_constants(rows, table)
    return summary[-1]["mean error %"] > MEAN


if __name__ == "__main__":
    sys.exit(main())
