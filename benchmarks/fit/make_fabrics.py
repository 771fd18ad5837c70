"""Makes the fabrics that come with Foretrace, and the constants of links, from published tables of nccl-tests.

    python -m benchmarks.fit.make_fabrics [shared/public/nccl]

Nodes of H200, H100, B200, A100 and L40S, an NVL72 rack of GB200 and GH200 on Slingshot come from other tables
(`benchmarks.lib.node_tables`); those of one GPU are put together.

Where one process drove all GPUs of a test, small sizes show its launches and not the links: they are left out, and
carried over from larger ones by the specification of the links.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from benchmarks.fit.link_fit import by_machine, fit, left_out
from benchmarks.lib.nccl_tables import TABLES, Table, tables
from benchmarks.lib.node_tables import node_times
from foretrace.cost_models.collectives.curves import fit_curves
from foretrace.cost_models.collectives.topology import CONSTANTS_FILE
from foretrace.graph.tables import SIGMAS_TO_P90
from foretrace.platform.fabric import FABRICS, Fabric, Links
from foretrace.platform.measurements.fabric import TimedCollective
from foretrace.platform.typed_json import write

SHIPPED = {
    "a100-2x8-p4d": "a100_p4d",
    "h100-2x8-p5": "h100_p5",
    "h100-2x8-a3mega": "h100_a3mega",
    "b200-2x8": "b200_lambda",
    "v100-8x": "v100_sxm2_16g",
    "v100-12x-dgx2": "v100_sxm3",
    "v100-2x-pcie": "v100_pcie",
}
"""Fabrics, and how the names of their tables begin."""
NODES = {
    "h200-8x": "h200-nvswitch",
    "h100-8x": "h100-nvswitch",
    "b200-8x": "b200-nvswitch",
    "a100-8x-nvswitch": "a100-nvswitch",
    "l40s-8x-pcie": "l40s-pcie",
    "gb200-nvl72": "gb200-nvl72",
    "gh200-slingshot": "gh200-slingshot",
}
"""Fabrics of nodes, and their links."""
SHOWN = 1.3
"""Times the launches: from there on a size shows the links."""


def write_constants(found: list[Table]) -> None:
    """Fit the constants of links on all tables; how far they miss is seen on machines left out."""
    ratios = np.concatenate([expected / table.us for table, expected in left_out(found, by_machine)])
    whole = fit(found)
    figures = {name: float(f"{value:.3g}") for name, value in asdict(whole.links).items() if name != "provenance"}
    figures["spread"] = float(f"{np.quantile(np.abs(np.log(ratios)), 0.8) / SIGMAS_TO_P90:.2g}")
    provenance = f"fitted on {len(found)} published tables of nccl-tests; spread as on machines left out"
    write(CONSTANTS_FILE, {**figures, "provenance": provenance})
    print(CONSTANTS_FILE, whole.driven)


def shown(table: Table) -> list[TimedCollective]:
    """A table's rows, without those that show launches."""
    if table.machine.gpus_per_process == 1:
        return table.exchanges
    return [one for one in table.exchanges if one.us[0] > SHOWN * table.us.min()]


def write_fabric(name: str, found: list[Table]) -> None:
    """Write the fabric that tables of nccl-tests show."""
    sources = "; ".join(dict.fromkeys(table.source for table in found))
    where = f"{found[0].ranks} x {found[0].links.gpu} on {found[0].nodes} node{'s' * (found[0].nodes > 1)}"
    hidden = any(table.machine.gpus_per_process > 1 for table in found)
    small = "; without the sizes that one process's launches hide" if hidden else ""
    seen = [exchange for table in found for exchange in shown(table)]
    write_curves(name, seen, found[0].links, f"{where}, nccl-tests: {sources}{small}")


def write_node(name: str) -> None:
    """Write the fabric that tables of a node, a rack or a cluster show."""
    links, (seen, sources) = Links.named(NODES[name]), node_times(name)
    ranks = sorted({one.ranks for one in seen})
    where = f"{', '.join(map(str, ranks))} x {links.gpu}"
    write_curves(name, seen, links, f"{where}, nccl-tests: {'; '.join(sources)}")


def write_curves(name: str, seen: list[TimedCollective], links: Links, provenance: str) -> None:
    """Fit the curves of timed collectives, and write them as a shipped fabric."""
    curves = fit_curves(seen)
    rounded = tuple(
        replace(
            curve,
            latency_us=float(f"{curve.latency_us:.4g}"),
            gbps=float(f"{curve.gbps:.4g}"),
            bend=float(f"{curve.bend:.4g}"),
            knots=tuple((size, float(f"{factor:.4g}")) for size, factor in curve.knots),
            spread=float(f"{curve.spread:.3g}"),
        )
        for curve in curves
    )
    Fabric(name, rounded, provenance, links).write(FABRICS / f"{name}.json")
    print(FABRICS / f"{name}.json", f"{len(curves)} curves")


def main() -> None:
    found = tables(Path(sys.argv[1]) if len(sys.argv) > 1 else TABLES)
    write_constants(found)
    for name, begins in SHIPPED.items():
        write_fabric(name, [table for table in found if table.name.startswith(begins)])
    for name in NODES:
        write_node(name)


if __name__ == "__main__":
    main()
