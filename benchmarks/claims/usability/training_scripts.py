"""Claim: an unchanged training script becomes a forecast with one command, `foretrace predict -- python train.py …`. Of
13 scripts in the form of public ones (nanoGPT, minGPT, examples of PyTorch, transformers, timm, Lightning, diffusers,
TorchRec, llm-foundry) at least 10 do; the others end with what to do. Their step has a forward, a backward and an
optimizer, and nothing is written beside them.

The scripts are in `benchmarks/data/training_scripts`; their data is made up, where the originals have a program that
prepares it. Those whose libraries are not installed are left out.

    python -m benchmarks.claims.usability.training_scripts [--libraries FOLDER] [NAME …]
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.lib.table import keep

SCRIPTS = Path(__file__).resolve().parents[2] / "data" / "training_scripts"
WANTED = 10
LIMIT_S = 600
NO_STEP = 2


def tokens(folder: Path) -> None:
    """What nanoGPT's prepare.py makes."""
    data = folder / "data" / "shakespeare_char"
    data.mkdir(parents=True)
    for split, count in (("train", 1_000_000), ("val", 100_000)):
        np.random.default_rng(0).integers(0, 65, count).astype(np.uint16).tofile(data / f"{split}.bin")
    (data / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 65}))


def text(folder: Path) -> None:
    """What minGPT's project asks to download."""
    (folder / "input.txt").write_text("the quick brown fox jumps over the lazy dog. " * 2000)


def words(folder: Path) -> None:
    """A text in place of wikitext."""
    rng = random.Random(0)
    lines = (" ".join(f"w{rng.randrange(3000)}" for _ in range(20)) for _ in range(2000))
    (folder / "data" / "wikitext-2").mkdir(parents=True, exist_ok=True)
    (folder / "data" / "wikitext-2" / "train.txt").write_text("\n".join(lines))


class Job(NamedTuple):
    """A script and the command that starts it."""

    folder: str
    command: str
    needs: tuple[str, ...] = ()
    prepare: Callable[[Path], None] = lambda folder: None
    options: tuple[str, ...] = ()


JOBS = {
    "nanoGPT": Job("nanogpt", "python train.py config/train_shakespeare_char.py --dropout=0.1", (), tokens),
    "nanoGPT, torchrun": Job(
        "nanogpt",
        "torchrun --nproc-per-node 4 train.py config/train_shakespeare_char.py --gradient_accumulation_steps=4",
        (),
        tokens,
    ),
    "nanoGPT without its data": Job("nanogpt", "python train.py config/train_shakespeare_char.py"),
    "minGPT": Job("mingpt", "python chargpt.py --trainer.batch_size=32", (), text),
    "MNIST": Job("mnist", "python main.py --batch-size 128"),
    "GAN": Job("gan", "python main.py --batchSize 32"),
    "LSTM": Job("word_language_model", "python main.py --bptt 64", (), words),
    "DDP by spawn": Job("ddp_spawn", "python multigpu.py 50 10", (), lambda folder: None, ("--world", "4")),
    "timm": Job("timm_loop", "python train.py --model resnet50 --amp --model-ema -b 64", ("timm",)),
    "transformers, Trainer": Job(
        "hf_trainer",
        "python run_clm.py --do_train --output_dir out --report_to none --per_device_train_batch_size 4",
        ("transformers", "accelerate"),
    ),
    "transformers, accelerate": Job(
        "hf_no_trainer", "python run_clm_no_trainer.py --block_size 256", ("transformers", "accelerate")
    ),
    "Lightning": Job("lightning_module", "python train.py --batch_size 128", ("lightning",)),
    "diffusers": Job("diffusers_unet", "python train_unconditional.py --use_ema", ("diffusers", "accelerate")),
    "llm-foundry": Job("llm_foundry", "python train.py yamls/mpt-125m.yaml model.n_layers=6", ("omegaconf",)),
    "TorchRec": Job("torchrec_dlrm", "python dlrm_main.py --batch_size 1024", ("torchrec", "fbgemm_gpu")),
}


def outcome(name: str, job: Job, environment: dict[str, str]) -> dict[str, Any]:
    """What becomes of one script."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / job.folder
        shutil.copytree(SCRIPTS / job.folder, folder)
        job.prepare(folder)
        before = contents(folder)
        started = time.monotonic()
        command = [sys.executable, "-m", "foretrace", "predict", "--on", "h200", "--json", *job.options, "--"]
        ran = subprocess.run(
            [*command, *job.command.split()],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        row: dict[str, Any] = {"script": name, "seconds": round(time.monotonic() - started, 1)}
        row["unharmed"] = contents(folder) == before
    said = ran.stderr.strip().splitlines()
    if ran.returncode == 0:
        found = json.loads(ran.stdout)
        phases = {each["name"] for each in found["by_phase"] if each["count"]}
        whole = {"forward", "backward", "optimizer"} <= phases
        return {**row, "ends with": "forecast" if whole else "half a step", "step_ms": found["step_ms"], "says": ""}
    advised = ran.returncode == NO_STEP and "def make_step" in ran.stderr and said[-1].startswith("foretrace: ")
    return {**row, "ends with": "what to do" if advised else "bug", "step_ms": None, "says": shortened(said[-1])}


def shortened(line: str) -> str:
    """The first words of an error, without folders."""
    return re.sub(r"(?<![\w.])/\S*/", "", line)[:160]


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def main() -> int:
    """Predict all scripts, and count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *JOBS])
    parser.add_argument("--libraries", type=Path, help="a folder with libraries that are not installed")
    options = parser.parse_args()
    environment = dict(os.environ)
    if options.libraries:
        sys.path.append(str(options.libraries))
        paths = (environment.get("PYTHONPATH", ""), str(options.libraries))
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    rows = []
    for name in options.names or JOBS:
        job = JOBS[name]
        if all(find_spec(module) for module in job.needs):
            rows.append(outcome(name, job, environment))
            print(*rows[-1].values(), flush=True)
    ends = [row["ends with"] for row in rows]
    wrong = [row["script"] for row in rows if row["ends with"] not in ("forecast", "what to do") or not row["unharmed"]]
    forecasts = ends.count("forecast")
    verdict = f"{', '.join(wrong)}: neither a forecast nor what to do" if wrong else None
    if not options.names:
        keep("training_scripts", rows, verdict=verdict)
    return int(bool(wrong) or (not options.names and forecasts < min(WANTED, len(rows) - 1)))


if __name__ == "__main__":
    sys.exit(main())
