"""How the device time of a forecast is known: measured, modelled, or by roofline, for each kernel family."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from foretrace.forecast.families import family
from foretrace.forecast.work import SOURCES
from foretrace.forecast.workings import Workings
from foretrace.report.forecast import KNOWN
from foretrace.report.pages.lanes import waits_for_ranks
from foretrace.report.pages.sheet import Chart


def sources(workings: Workings) -> Chart | None:
    """Device time by family and by how it is known, waits apart, mean over ranks; None for a measured step."""
    ms: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for graph, codes, wait in zip(workings.graphs, workings.sources, waits_for_ranks(workings)):
        kernels, op_names = graph.kernels, [*graph.ops.names.items, ""]
        op = np.append(graph.ops.name, len(op_names) - 1)[kernels.op]
        columns = (kernels.name.tolist(), op.tolist(), (kernels.end - kernels.start - wait).tolist(), codes.tolist())
        for name, of, us, code in zip(*columns):
            ms[family(kernels.names[name], op_names[of])][SOURCES[code]] += us / 1e3 / len(workings.graphs)
    if not ms:
        return None
    families = sorted(ms, key=lambda name: -sum(ms[name].values()))
    used = [word for word in SOURCES.values() if any(ms[name][word] for name in families)]
    return {
        "kind": "stacked",
        "rows": families,
        "parts": [KNOWN[word] for word in used],
        "ms": [[round(ms[name][word], 4) for name in families] for word in used],
    }
