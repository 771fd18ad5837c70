"""One of several processes that measure what exchanges between them take; `benchmarks.gloo_truth` starts them.

    torchrun --nproc-per-node 4 -m benchmarks.gloo_fabric OUT

makes the platform ``OUT`` of them.
"""

from __future__ import annotations

import sys
from pathlib import Path

from foretrace.calibrating import calibrate

MINUTES = 0.1


def main() -> int:
    calibrate(Path(sys.argv[1]), ("fabric",), MINUTES)
    return 0


if __name__ == "__main__":
    sys.exit(main())
