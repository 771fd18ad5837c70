"""A benchmark as a folder: its code, the harness that runs it, and what is known of the original."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from foretrace.errors import parse_size
from foretrace.graph import ForetraceError, Graph, Tensor
from foretrace.graph.operators import LAYOUTS
from foretrace.graph.tensor import ITEMSIZE
from foretrace.output import atomic_folder
from foretrace.replay.about import about
from foretrace.replay.code import Code, code_of
from foretrace.replay.groups import groups_of
from foretrace.replay.harness.files import digest
from foretrace.replay.literals import DEVICE, NotWritableError
from foretrace.replay.memory import footprint, main_device
from foretrace.replay.original import original_of
from foretrace.replay.plan import Call, Plan, Result
from foretrace.replay.planning import plan_of
from foretrace.replay.selection import Selection
from foretrace.replay.texts import one_word, sentence
from foretrace.transforms.numerics.dtype import parse_dtype, with_dtype
from foretrace.transforms.resize.batch_sequence import batch, batch_size

LONGEST_US, MOST_BYTES = 60e6, 1 << 62
HARNESS = Path(__file__).parent / "harness"
RUN = '''"""Run this benchmark: python run.py --help."""

import sys
from pathlib import Path

try:
    from harness.main import main
except ImportError as missing:
    print(f"run.py: {missing}; write the benchmark again with foretrace benchmark", file=sys.stderr)
    sys.exit(2)

if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parent))
'''


@dataclass(frozen=True)
class Choices:
    """What of a step a benchmark takes, and how it is written."""

    selection: Selection = field(default_factory=Selection)
    packages: Mapping[str, str] = field(default_factory=dict)
    """Namespaces of operators that may be called besides PyTorch's own, and the package that brings each, or none."""
    dtype: str | None = None
    """Floating type to run in; each tensor's own where it is left out."""
    obfuscate: bool = False
    """Leave out every name but those of operators."""
    ranks: int | None = None
    """Take only so many ranks of a job, from the first on; all where it is left out."""
    batch: str | None = None
    """Samples in a batch, 64, or 64/16 where the recorded 16 can't be told; as recorded where it is left out."""


def write_benchmark(graph: Graph, out: Path, choices: Choices) -> Path:
    """Write a benchmark of one rank's step."""
    made = files_of(graph, choices)
    told = about(made.plan, made.stand_ins, "" if choices.obfuscate else graph.source)
    return write_files({**made.own, "README.md": told}, out)


@dataclass(frozen=True)
class Files:
    """The files of one rank's step, by name; what they were made of; and how many calls they can't make."""

    own: dict[str, str]
    plan: Plan
    stand_ins: int


def files_of(graph: Graph, choices: Choices, kept: Sequence[int] = ()) -> Files:
    """What a benchmark of one rank consists of; ``kept`` are the ranks that are replayed together."""
    changed = _changed(graph, choices)
    plan = plan_of(changed, choices.selection, graph)
    plan.kept, plan.batch = tuple(kept), batch_size(changed)
    if len(kept) in range(1, plan.world):
        plan.notes.append(f"{len(kept)} of the {plan.world} ranks: each collective is among those of them it had")
    called = {call.name.partition("::")[0] for call in plan.recorded}
    plan.notes += [f"--ops {name}: the step has no such op" for name in choices.packages if name not in called]
    if choices.batch is not None:
        plan.whole = False
    if choices.obfuscate:
        plan.notes = [note for note in plan.notes if note not in graph.notes]
    try:
        code = code_of(plan, choices.packages, modules=not choices.obfuscate)
    except NotWritableError as problem:
        raise ForetraceError(
            f"{graph.source} can't be made into a benchmark: it asks for {problem}",
            "It may be damaged: record the job again.",
        ) from None
    original = original_of(graph, plan, choices.obfuscate)
    if choices.batch is not None:
        original |= {"kernel_ms": None, "launches": None, "kernels": {}}
    files = {
        "step.py": code.step,
        "inputs.py": code.inputs,
        "calls.json": json.dumps(facts(plan, code), indent=None, separators=(",", ":")) + "\n",
        "original.json": json.dumps(original, indent=1) + "\n",
    }
    return Files(files, plan, len(code.stand_ins))


def _changed(graph: Graph, choices: Choices) -> Graph:
    """The step with the batch and in the type that are wanted."""
    if choices.batch is not None:
        graph = batch(graph, *parse_size("batch", choices.batch))
    return graph if choices.dtype is None else with_dtype(graph, parse_dtype(choices.dtype))


def write_files(files: Mapping[str, str], out: Path) -> Path:
    """Write a new folder with these files, with what runs them; nothing is left of one that can't be completed."""
    with atomic_folder(out) as folder:
        for name, text in {"run.py": RUN, **files}.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        shutil.copytree(HARNESS, folder / "harness", ignore=shutil.ignore_patterns("__pycache__"))
    return out


def facts(plan: Plan, code: Code) -> dict[str, Any]:
    """What the harness must know: sizes and times of the calls, switches of PyTorch, memory."""
    count = max((call.number for call in plan.calls), default=-1) + 1
    calls: list[dict[str, Any]] = [{"name": "", "host_us": 0.0, "device_us": 0.0, "makes": []} for _ in range(count)]
    for call in plan.recorded:
        calls[call.number] = {
            "name": one_word(call.name),
            "host_us": _time(call.host_us),
            "device_us": _time(call.device_us),
            **({"took_us": _time(call.took_us)} if call.took_us else {}),
            "makes": [_made(result, call) for result in call.results],
        }
    return {
        "device": main_device(plan),
        "memory": {word: min(nbytes, MOST_BYTES) for word, nbytes in asdict(footprint(plan)).items()}
        | {"batch": plan.batch},
        "rank": plan.rank,
        "world": plan.world,
        "groups": groups_of(plan),
        "settings": plan.settings,
        "threads": plan.threads,
        "unowned_us": _time(plan.unowned_us),
        "numbers": [call.number for call in plan.recorded if not call.is_side_call],
        "stand_ins": {str(number): sentence(why) for number, why in code.stand_ins.items()},
        "notes": [sentence(note) for note in plan.notes],
        "calls": calls,
        "written": digest(code.step, code.inputs),
    }


def _made(result: Result, call: Call) -> Any:
    if isinstance(result, list):
        return [_made(item, call) for item in result]
    return described(call.made[result]) if result in call.made else None


def _time(us: float) -> float:
    """A time that a stand-in may take."""
    return round(min(max(us, 0.0), LONGEST_US), 3) if math.isfinite(us) else 0.0


def described(tensor: Tensor) -> dict[str, Any] | None:
    """A tensor as JSON; None for one that there can't be.

    >>> described(Tensor((2,), "float32", "cpu", (1,)))["dtype"], described(Tensor((2,), "system", "cpu"))
    ('float32', None)
    """
    if tensor.dtype not in ITEMSIZE or tensor.layout not in LAYOUTS or not DEVICE.fullmatch(tensor.device or "cpu"):
        return None
    return {
        "shape": tensor.shape,
        "stride": tensor.stride,
        "dtype": tensor.dtype,
        "device": tensor.device,
        "layout": tensor.layout,
    }
