"""Published step times as rows for `foretrace check-table`: the program of each, how ranks share it, and where.

Programs are those of `benchmarks/models`; what a table leaves open is said beside its rows.
"""

from __future__ import annotations

import csv
import gzip
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.lib.process import shared
from foretrace.whatif.step_table import TableRow

MODELS = Path(__file__).resolve().parents[1] / "models"
NEVER_FITTED = (
    "vtrain multi_node", "simumax context", "simumax experts", "torchtitan float8", "torchtitan context",
)  # fmt: skip
VTRAIN_EVERY = {"single_node": 60, "multi_node": 18}
"""Of vTrain's 774 rows, every so-manyth."""


@dataclass(frozen=True)
class PublishedStep:
    """A row, which table it is of, and what else was published of it."""

    source: str
    name: str
    row: TableRow
    allocated_gib: float | None = None
    reserved_gib: float | None = None


def _program(script: str, **options: object) -> str:
    given = " ".join(f"--{name} {value}" for name, value in options.items())
    return f"python {MODELS / script}.py {given}"


def torchtitan() -> Iterator[PublishedStep]:
    """Llama 3.1 on H100s with HBM2e at 500 W: FSDP2 with selective recomputation; tokens per second and GPU, GiB."""
    text = (shared("public/torchtitan") / "llama3_h100_202412_torchtitan.md").read_text()
    tables = re.findall(r"\*\*Table (\d)\*\*(.*?)(?=\*\*Table|### Versions)", text, re.DOTALL)
    for number, table in tables:
        if number not in ("1", "3"):
            continue
        data = 8 if number == "1" else 128
        for technique, tokens, gib in re.findall(
            r"^\| (FSDP[^|]*) \|\s*([\d,]+) \|\s*([\d.]+) \|", table, re.MULTILINE
        ):
            program = _program("llama", preset="8b", batch=2, recompute="selective")
            float8 = "Float8" in technique
            row = TableRow(
                f"{program} --float8" if float8 else program,
                "h100-hbm2e",
                2 * 8192 / float(tokens.replace(",", "")) * 1e3,
                f"data={data},sharded,mixed",
                "fuse=elementwise" if "compile" in technique else "",
            )
            source = "torchtitan float8" if float8 else "torchtitan"
            yield PublishedStep(source, f"8B, {data} GPUs, {technique}", row, reserved_gib=float(gib))


def torchtitan_context() -> Iterator[PublishedStep]:
    """The same of long sequences in float8, shared by context parallel ranks, which gather keys and values, as is its
    default: all is computed again."""
    text = (shared("public/torchtitan") / "llama3_h100_202412_torchtitan.md").read_text()
    table = text.partition("**Table 2**")[2].partition("**Table 3**")[0]
    for data, context, seq, tokens, gib in re.findall(
        r"^\| FSDP (\d), CP (\d) \|\s*(\d+) \|\s*([\d,]+) \|\s*([\d.]+) \|", table, re.MULTILINE
    ):
        program = _program("llama", preset="8b", batch=1, recompute="full", seq=seq)
        parallel = f"data={data},sharded,mixed" + (
            f",context={context},context_kind=all-gather" if context != "1" else ""
        )
        ms = int(seq) / int(context) / float(tokens.replace(",", "")) * 1e3
        row = TableRow(f"{program} --float8", "h100-hbm2e", ms, parallel, "fuse=elementwise")
        name = f"8B, FSDP {data}, CP {context}, {seq} tokens, Float8"
        yield PublishedStep("torchtitan context", name, row, reserved_gib=float(gib))


def simumax() -> Iterator[PublishedStep]:
    """Megatron-LM with TransformerEngine on 8 B200: distributed optimizer, sequence parallel, no overlap; mixtures of
    experts are taken to be dropless, with as many tokens for each expert as routing at random gives."""
    with gzip.open(shared("public/simumax") / "b200_8gpu_megatron_steps.csv.gz", "rt") as file:
        listed = list(csv.DictReader(file))
    for one in listed:
        ranks = {name: int(count) for name, count in re.findall(r"(tp|pp|dp|cp|ep|seq)(\d+)", one["case"])}
        microbatches = int(one["micro_batches"])
        parallel = [f"data={ranks['dp']},zero1,mixed,microbatches={microbatches}"]
        parallel += [f"tensor={ranks['tp']},sequence"] if ranks["tp"] > 1 else []
        parallel += [f"pipeline={ranks['pp']}"] if ranks["pp"] > 1 else []
        parallel += [f"context={ranks['cp']}"] if "cp" in ranks else []
        mixture = one["model"].startswith("deepseek")
        parallel += [f"experts={ranks['ep']}"] if mixture else []
        preset = one["model"].removeprefix("llama3-").removeprefix("deepseek")
        size = {"preset": preset, "layers": one["layer_num"], "batch": microbatches}
        if "405b" in one["model"]:
            size["key-heads"] = 16  # as SimuMax's configuration has it; Llama 3.1 405B has 8
        if "seq" in ranks:
            size["seq"] = ranks["seq"]
        model = _program("megatron_moe" if mixture else "megatron_llama", **size)
        row = TableRow(model, "b200", float(one["real_ms"]), ",".join(parallel), "fuse=elementwise")
        reserved = float(one["max_reserved_mb_rank0"]) / 1024
        source = "simumax experts" if mixture else "simumax context" if "cp" in ranks else "simumax"
        yield PublishedStep(source, one["case"].removesuffix("_cef"), row, float(one["real_alloc_gib"]), reserved)


def vtrain() -> Iterator[PublishedStep]:
    """Megatron-LM's GPT of 2022 on A100s: one node, and 64 to 512 GPUs."""
    for table, every in VTRAIN_EVERY.items():
        with (shared("public/vtrain") / f"{table}.csv").open() as file:
            listed = list(csv.DictReader(file))
        for one in listed[::every]:
            tensor, data, pipeline = (int(one[f"{kind} parallelism"]) for kind in ("tensor", "data", "pipeline"))
            each = int(one["global batch"]) // data
            model = _program(
                "megatron_gpt",
                layers=one["# layers"],
                width=one["hidden size"],
                heads=one["attention heads"],
                seq=one["sequence length"],
                batch=each,
            )
            counts = {
                "data": data,
                "tensor": tensor,
                "pipeline": pipeline,
                "microbatches": each // int(one["micro batch"]),
            }
            parallel = ",".join(f"{name}={count}" for name, count in counts.items() if count > 1)
            row = TableRow(model, "a100", float(one["iteration time (ms)"]), parallel)
            name = f"{table}: {one['# layers']} x {one['hidden size']}, {parallel}"
            yield PublishedStep(f"vtrain {table}", name, row)


def published() -> list[PublishedStep]:
    """All rows."""
    return [*torchtitan(), *torchtitan_context(), *simumax(), *vtrain()]


def is_fitted(one: PublishedStep) -> bool:
    """Whether a shipped stack was fitted on a row: every second one of its table.

    Of vTrain's many nodes, and of steps that are context parallel, in float8 or have experts, it was fitted on none.
    """
    if one.source in NEVER_FITTED:
        return False
    return [row.name for row in published() if row.source == one.source].index(one.name) % 2 == 0
