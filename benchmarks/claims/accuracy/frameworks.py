"""Claim: scripts of training libraries are recorded and sketched without a changed line.

Each script of `benchmarks/lib/frameworks` runs here on the CPU with a tiny model, alone and recorded: it must end well
and print the same loss to the last digit. Then it is sketched at a real size for an H200 from its command, with no GPU.
What is not installed is left out. Seconds are those of the whole prediction, imports included.

    python -m benchmarks.claims.accuracy.frameworks [SCRIPT …]
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.lib.table import keep

ROOT = Path(__file__).resolve().parents[3]
SCRIPTS = ROOT / "benchmarks" / "lib" / "frameworks"
LIBRARIES = {
    "transformers_trainer": ("transformers", "accelerate"),
    "accelerate_loop": ("accelerate", "transformers"),
    "peft_lora": ("peft", "transformers"),
    "trl_sft": ("trl", "peft", "datasets"),
    "lightning_fit": ("lightning", "torchmetrics", "torchvision"),
    "timm_train": ("timm",),
    "torchvision_classification": ("torchvision",),
    "diffusers_unet": ("diffusers", "accelerate"),
    "sentence_transformers_fit": ("sentence-transformers", "datasets"),
    "torch_geometric_gcn": ("torch-geometric",),
    "torchrec_ebc": ("torchrec",),
    "torchrec_parallel": ("torchrec",),
    "torchao_float8": ("torchao",),
    "deepspeed_zero": ("deepspeed",),
    "torchtitan_llama": ("torchtitan", "triton"),
}
"""Packages that each script needs; the first is the one that it is about."""
RANKS = ("torchrec_parallel", "deepspeed_zero", "torchtitan_llama")
"""Scripts of a rank, which find a process group in their sketch."""
SKETCHED_ONLY = ("torchtitan_llama",)
"""Scripts that no CPU runs: FlexAttention has no backward there."""
LIMIT_S = 1200


def recorded(script: str, out: str) -> dict[str, bool]:
    """Whether a script is recorded, and prints then what it prints alone."""
    alone = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=LIMIT_S)
    steps = ("--warmup", "2", "--plain", "3", "--profile", "1")
    words = [sys.executable, "-m", "foretrace", "record", "--out", out, *steps, "--", sys.executable, script]
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S)
    loss = loss_of(alone.stdout)
    return {"recorded": done.returncode == 0, "same loss": bool(loss) and loss_of(done.stdout) == loss}


def loss_of(printed: str) -> str:
    """The last loss that a script printed."""
    return next((line for line in reversed(printed.splitlines()) if line.startswith("loss ")), "")


def tried(name: str) -> dict[str, Any]:
    """One script: alone, recorded, and sketched."""
    script = str(SCRIPTS / f"{name}.py")
    library = LIBRARIES[name][0]
    foretrace = (sys.executable, "-m", "foretrace")
    row: dict[str, Any] = {"library": f"{library} {version(library)}", "script": name}
    with tempfile.TemporaryDirectory() as folder:
        row |= {"recorded": None, "same loss": None} if name in SKETCHED_ONLY else recorded(script, f"{folder}/run")
        page = Path(folder) / "said.json"
        world = ("--world", "1") if name in RANKS else ()
        command = [*foretrace, "predict", "--on", "h200", "--json", *world, "--", "python", script, "--full"]
        with page.open("w") as answer:
            began = time.perf_counter()
            done = subprocess.run(command, stdout=answer, stderr=subprocess.PIPE, text=True, timeout=LIMIT_S)
            seconds = time.perf_counter() - began
        row["sketched"] = done.returncode == 0
        told = json.loads(page.read_text()) if done.returncode == 0 else {"by_op": []}
        row["calls"] = sum(op["count"] for op in told["by_op"]) or None
        row["step ms"] = told.get("step_ms")
        row["cautions"] = told.get("cautions") or []
        row["seconds"] = seconds
        row["why not"] = None if done.returncode == 0 else without_folders(done.stderr.strip().splitlines()[-1])
    return row


def without_folders(message: str) -> str:
    """A message without this machine's folders."""
    return re.sub(rf"{re.escape(tempfile.gettempdir())}/[^\s:;,)]*/", "…/", message.replace(f"{ROOT}/", ""))


def installed(name: str) -> bool:
    try:
        return all(version(package) for package in LIBRARIES[name])
    except PackageNotFoundError:
        return False


def main() -> int:
    rows = []
    for name in sys.argv[1:] or LIBRARIES:
        if not installed(name):
            print(f"{name}: left out, {' or '.join(LIBRARIES[name])} is not installed")
            continue
        rows.append(tried(name))
        keep("frameworks", rows, hide=("cautions", "why not"))
    if not rows:
        print("nothing done: none of the libraries is installed")
        return 0
    held = [row["recorded"] is not False and row["same loss"] is not False and row["sketched"] for row in rows]
    return not all(held)


if __name__ == "__main__":
    sys.exit(main())
