"""A benchmark as a folder: code, harness, what is known of the original, README; of one rank or of several."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from foretrace import __version__
from foretrace.errors import parse_size
from foretrace.graph import ForetraceError, Graph, Job, Tensor, tensors_in
from foretrace.graph.op import ITEMSIZE
from foretrace.graph.operators import LAYOUTS, operator_path
from foretrace.output import atomic_folder
from foretrace.replay.generate.choices import Choices
from foretrace.replay.generate.code import Code, code_of
from foretrace.replay.generate.literals import DEVICE, NotWritableError, safe_name, safe_text
from foretrace.replay.generate.plan import Plan, PlanCall, Result, footprint, main_device
from foretrace.replay.generate.planning import plan_of
from foretrace.replay.generate.timing import original_of
from foretrace.replay.harness.files import digest
from foretrace.transforms.numerics import parse_dtype, with_dtype
from foretrace.transforms.resize.batch_sequence import batch, batch_size, other_batch_notes

MAX_CALL_US, MAX_BYTES = 60e6, 1 << 62
"""Bounds of recorded times and sizes; what exceeds them is damaged."""
HARNESS = Path(__file__).parents[1] / "harness"
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


def write_benchmark(graph: Graph, out: Path, choices: Choices) -> Path:
    """Write a benchmark of one rank's step."""
    made = benchmark_files(graph, choices)
    text = readme(made.plan, made.stand_ins, "" if choices.obfuscate else graph.source)
    return write_files({**made.own, "README.md": text}, out)


@dataclass(frozen=True)
class RankFiles:
    """Files of one rank's step by name, their plan, and the number of calls that can't be made."""

    own: dict[str, str]
    plan: Plan
    stand_ins: int


def benchmark_files(graph: Graph, choices: Choices, replayed_ranks: Sequence[int] = ()) -> RankFiles:
    """The files of one rank's benchmark; ``replayed_ranks`` are those of the job that are replayed, all by default."""
    changed = _changed(graph, choices)
    plan = plan_of(changed, choices.selection, graph)
    plan.replayed_ranks, plan.batch = tuple(replayed_ranks), batch_size(changed)
    if len(replayed_ranks) in range(1, plan.world):
        plan.notes.append(
            f"{len(replayed_ranks)} of the {plan.world} ranks: collectives run among those of them that took part"
        )
    called = {call.name.partition("::")[0] for call in plan.recorded}
    plan.notes += [f"--ops {name}: the step has no such op" for name in choices.packages if name not in called]
    if choices.batch is not None:
        plan.whole = False
        plan.notes += other_batch_notes(graph, parse_size("batch", choices.batch)[1])
    if choices.obfuscate:
        plan.notes = [note for note in plan.notes if note not in graph.notes]
    try:
        code = code_of(plan, choices.packages, modules=not choices.obfuscate)
    except NotWritableError as problem:
        raise ForetraceError(
            f"{graph.source} can't be made into a benchmark: it needs {problem}",
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
        **({"regions.py": code.regions} if code.regions else {}),
    }
    return RankFiles(files, plan, len(code.stand_ins))


def _changed(graph: Graph, choices: Choices) -> Graph:
    """The step with the chosen batch and dtype."""
    if choices.batch is not None:
        graph = batch(graph, *parse_size("batch", choices.batch))
    return graph if choices.dtype is None else with_dtype(graph, parse_dtype(choices.dtype))


def write_files(files: Mapping[str, str], out: Path) -> Path:
    """Write a new folder with these files, ``run.py`` and the harness, completely or not at all."""
    with atomic_folder(out) as folder:
        for name, text in {"run.py": RUN, **files}.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        shutil.copytree(HARNESS, folder / "harness", ignore=shutil.ignore_patterns("__pycache__"))
    return out


def facts(plan: Plan, code: Code) -> dict[str, Any]:
    """The content of ``calls.json``: sizes and times of the calls, settings of PyTorch, memory."""
    count = max((call.number for call in plan.calls), default=-1) + 1
    calls: list[dict[str, Any]] = [{"name": "", "host_us": 0.0, "device_us": 0.0, "makes": []} for _ in range(count)]
    for call in plan.recorded:
        calls[call.number] = {
            "name": safe_name(call.name),
            "host_us": _time(call.host_us),
            "device_us": _time(call.device_us),
            **({"took_us": _time(call.took_us)} if call.took_us else {}),
            "makes": [_made(result, call) for result in call.results],
        }
    return {
        "device": main_device(plan),
        "memory": {field: min(nbytes, MAX_BYTES) for field, nbytes in asdict(footprint(plan)).items()}
        | {"batch": plan.batch},
        "rank": plan.rank,
        "world": plan.world,
        "groups": process_groups(plan),
        "settings": plan.settings,
        "threads": plan.threads,
        "unowned_us": _time(plan.unowned_us),
        "numbers": [call.number for call in plan.recorded if not call.is_side_call],
        "stand_ins": {str(number): safe_text(why) for number, why in code.stand_ins.items()},
        "notes": [safe_text(note) for note in plan.notes],
        "calls": calls,
        "written": digest(code.step, code.inputs),
        **({"regions": regions_json(plan)} if code.regions else {}),
    }


def regions_json(plan: Plan) -> dict[str, dict[str, Any]]:
    """What is known of each compiled program besides its calls: how TorchInductor is asked to compile it."""
    made = {}
    for number, program in plan.programs.items():
        tensors = [place for place, value in enumerate(program.given) if isinstance(value, Tensor)]
        made[str(number)] = {
            "kind": program.kind,
            "given": [tensor_json(tensor) for tensor in tensors_in(list(program.given))],
            "static": [new for new, place in enumerate(tensors) if place in program.static],
            "donated": [new for new, place in enumerate(tensors) if place in program.donated],
            "visible": list(program.visible),
            "origins": [safe_name(name) if operator_path(name, "") else "" for name in program.origins],
            "settings": {name: value for name, value in program.settings.items() if safe_name(name) == name},
            "cuda_graph": program.cuda_graph,
        }
    return made


def _made(result: Result, call: PlanCall) -> Any:
    if isinstance(result, list):
        return [_made(item, call) for item in result]
    return tensor_json(call.made[result]) if result in call.made else None


def _time(us: float) -> float:
    """A time within bounds."""
    return round(min(max(us, 0.0), MAX_CALL_US), 3) if math.isfinite(us) else 0.0


def tensor_json(tensor: Tensor) -> dict[str, Any] | None:
    """A tensor as JSON; None for an impossible one.

    >>> tensor_json(Tensor((2,), "float32", "cpu", (1,)))["dtype"], tensor_json(Tensor((2,), "system", "cpu"))
    ('float32', None)
    """
    if tensor.dtype not in ITEMSIZE or tensor.layout not in LAYOUTS or not DEVICE.fullmatch(tensor.device or "cpu"):
        return None
    return {name: getattr(tensor, name) for name in ("shape", "stride", "dtype", "device", "layout")}


def write_job(job: Job, out: Path, choices: Choices) -> Path:
    """Write a benchmark of a job's ranks in one folder; files of the same content are written once."""
    graphs = _chosen(job, choices.ranks)
    if len(graphs) == 1:
        return write_benchmark(graphs[0], out, choices)
    replayed_ranks = [graph.rank for graph in graphs]
    made = [benchmark_files(graph, choices, replayed_ranks) for graph in graphs]
    files: dict[str, str] = {}
    places: list[dict[str, str]] = []
    first: dict[tuple[str, str], str] = {}
    for rank, of_rank in zip(replayed_ranks, made):
        folder = f"rank-{rank}"
        places.append({name: first.setdefault((name, text), folder) for name, text in of_rank.own.items()})
        files.update({f"{folder}/{name}": text for name, text in of_rank.own.items() if places[-1][name] == folder})
    facts = {"ranks": places, "groups": all_groups(process_groups(of_rank.plan) for of_rank in made)}
    files["ranks.json"] = json.dumps(facts, indent=1) + "\n"
    source = "" if choices.obfuscate else job.source
    files["README.md"] = readme(made[0].plan, made[0].stand_ins, source, len(made))
    return write_files(files, out)


def _chosen(job: Job, ranks: int | None) -> list[Graph]:
    """The first ranks of a job."""
    there = len(job.graphs)
    if ranks is not None and ranks < 1:
        raise ForetraceError(f"{ranks} ranks can't be replayed", f"Ask for --ranks 1 to {there}, or leave it out.")
    if ranks is not None and ranks > there:
        has = "one rank" if there == 1 else f"{there} ranks"
        raise ForetraceError(f"{job.source} has {has}, not {ranks}", "Ask for fewer --ranks.")
    return job.graphs[:ranks]


def remaining_group(ranks: Sequence[int], replayed_ranks: Sequence[int]) -> dict[str, Any]:
    """A process group among the replayed ranks: their new numbers, their places in it, and its original size.

    >>> remaining_group([0, 2, 4, 6], replayed_ranks=[0, 1, 2])
    {'ranks': [0, 2], 'places': [0, 1], 'of': 4}
    """
    new = {rank: number for number, rank in enumerate(replayed_ranks)}
    places = [place for place, rank in enumerate(ranks) if rank in new]
    return {"ranks": [new[ranks[place]] for place in places], "places": places, "of": len(ranks)}


def process_groups(plan: Plan) -> dict[str, dict[str, Any]]:
    """Process groups of one rank's plan, by name."""
    replayed_ranks = plan.replayed_ranks or range(plan.world)
    return {name: remaining_group(ranks, replayed_ranks) for name, ranks in plan.groups.items()}


def all_groups(plans: Iterable[dict[str, dict[str, Any]]]) -> list[tuple[str, tuple[int, ...]]]:
    """All process groups of a job, in the same order for all ranks.

    >>> both, own = {"ranks": [0, 1]}, [{"ranks": [rank]} for rank in (0, 1)]
    >>> all_groups([{"all": both, "tp": own[0]}, {"all": both, "tp": own[1]}])
    [('all', (0, 1)), ('tp', (0,)), ('tp', (1,))]
    """
    return sorted({(name, tuple(entry["ranks"])) for groups in plans for name, entry in groups.items()})


README = """# A training step as a benchmark

Made by Foretrace {version}{source}: {calls:,} calls of the step in their order, {inputs:,} tensors that exist
before it{of_rank}. No model code and no data: inputs are made up like the original's.
{stand_ins}
    python run.py                # times it; needs torch, and nothing else
    python run.py --json
    python run.py --no-pace      # as fast as the host can: what the device could do
    python run.py --device cpu   # on another device than it was recorded

| file | holds |
| --- | --- |
| `{folder}step.py` | the step, one line per call; edit it as you like |
{regions}| `{folder}inputs.py` | tensors that exist before the step: sizes, and statistics of their values |
| `{folder}calls.json` | results and times of each call, for stand-ins and coverage |
| `{folder}original.json` | what the original measured, for the comparison |
| `harness/` | runs the benchmark |

`pace(12.3)` in `step.py`: the original's host took 12.3 microseconds since the last such line, in calls, modules,
autograd and Python. A replay that is faster waits for the rest.

{notes}"""
REGIONS = """| `{folder}regions.py` | graphs of compiled programs, call by call; `run.py --eager` runs them uncompiled |
"""
RANKS = """
## Ranks

    python run.py                        # starts all {world} ranks on this machine
    torchrun --nproc-per-node {world} run.py   # the same; over several machines with torchrun's own options
    python run.py --alone 0              # one rank; its collectives move nothing

Collectives are real: gloo between CPUs, nccl between GPUs. `ranks.json` says which groups there are, and in which
folder the files of each rank are: files of the same content are written once.
"""


def readme(plan: Plan, stand_ins: int, source: str, ranks: int = 1) -> str:
    """The README of a benchmark made from a ``source``, with the plan of its first rank; an empty source is omitted."""
    text = README.format(
        version=__version__,
        source=f" from {safe_text(Path(source).as_posix())}" if source else "",
        calls=len(plan.recorded),
        inputs=len(plan.inputs),
        of_rank=f", on rank {plan.rank} of {ranks}" if ranks > 1 else "",
        folder="rank-N/" if ranks > 1 else "",
        regions=REGIONS.format(folder="rank-N/" if ranks > 1 else "") if plan.programs else "",
        stand_ins=f"\n{stand_ins:,} calls can't be made; stand-ins take their place.\n" if stand_ins else "",
        notes="".join(f"- {safe_text(note)}\n" for note in plan.notes),
    )
    return text + RANKS.format(world=ranks) if ranks > 1 else text
