"""Make the ratios that come with Foretrace, of published tables: `platform/data/ratios`.

python -m benchmarks.fit.make_ratios [GPU…]; it takes the tables of the folder `shared/public`, and some minutes a GPU.
"""

from __future__ import annotations

import sys

from benchmarks.lib.process import shared
from foretrace._progress import Progress
from foretrace.calibration.published import Imported, fit_ratios
from foretrace.calibration.published_tables import read_published
from foretrace.cost_models.kernels.ratios import OLDER
from foretrace.platform.device import Device
from foretrace.platform.hypothetical import RATIOS
from foretrace.platform.platform import Platform
from foretrace.platform.registry import REFERENCE

SHIPPED = dict.fromkeys(("a100", "h100", "b200", "gb200", "l40s"), "aiconfigurator") | dict.fromkeys(
    ("mi300x", "mi355x"), "aiter"
)
OLDER_CUBLAS = {"h100": "vidur"}
"""Tables that were measured with the cuBLAS of CUDA 12.1."""


def show(step: Progress) -> None:
    """Print what is being fitted."""
    print(step.text, flush=True)


def main() -> None:
    """Fit the GPUs that are named, or all."""
    measured = Platform.named(REFERENCE)
    for gpu in sys.argv[1:] or SHIPPED:
        out, imported = RATIOS / gpu, Imported()
        out.mkdir(parents=True, exist_ok=True)
        rows = read_published(shared(f"public/{SHIPPED[gpu]}"), SHIPPED[gpu], {gpu, REFERENCE})
        if older := OLDER_CUBLAS.get(gpu):
            rows += [row._replace(kind=OLDER) for row in read_published(shared(f"public/{older}"), older, {gpu})]
        fit_ratios(rows, SHIPPED[gpu], Device.named(gpu), measured, out, imported, show)
        for kind, table in imported.kinds.items():
            print(gpu, kind, table)
        for note in imported.notes:
            print(gpu, note)


if __name__ == "__main__":
    main()
