"""``python -m foretrace.record --out DIR -- python train.py``: recording with nothing installed but torch and numpy."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from foretrace.graph import ForetraceError
from foretrace.record.watch.launch import launch


def main() -> int:
    """Read the command line, record, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m foretrace.record", description="Record a training job.")
    parser.add_argument("--out", type=Path, required=True, help="folder of the recording")
    parser.add_argument("--plain", type=int, default=20, help="steps to time with nothing attached")
    parser.add_argument("--profile", type=int, default=3, help="steps to profile")
    parser.add_argument("--warmup", type=int, default=5, help="steps before the first one that counts")
    parser.add_argument("--stop", action="store_true", help="end the job once it is recorded")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- and the command to run")
    chosen = parser.parse_args()
    command = chosen.command[1:] if chosen.command[:1] == ["--"] else chosen.command
    try:
        return launch(command, chosen.out, chosen.plain, chosen.profile, chosen.warmup, chosen.stop)
    except ForetraceError as error:
        print(f"foretrace: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
