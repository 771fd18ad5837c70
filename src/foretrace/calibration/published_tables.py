"""Reading tables of kernel times that others measured and published: a call, its time, the GPU and the harness.

A harness is the program that measured a table. It may time more than the kernel (a cast of the input, a routing), so
that times of two GPUs by the same harness are best divided.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import NamedTuple

from foretrace.cost_models.kernels.ratios import attention, grouped_linear, linear
from foretrace.errors import ForetraceError
from foretrace.files import read_bounded
from foretrace.graph import Op
from foretrace.platform.device import DEVICES, Device

MAX_TABLE_BYTES = 256 << 20
FEW_QUERIES = 16
"""Sequences up to this length say nothing of an attention's kernel."""
Row = Mapping[str, str]


class PublishedTime(NamedTuple):
    """A row of a table."""

    gpu: str
    """Name of a device."""
    kind: str
    """``bf16``, ``fp8``, ``grouped``, ``attention`` or ``flash``: what it says of calls, see `DeviceRatios`."""
    op: Op
    us: float
    harness: str
    layer: tuple[int | str, ...]
    """Sizes of the layer's weights, which rows for more tokens have in common."""
    where: str
    """File and line."""
    kernels: str = ""
    """Whose kernels ran, where the table says so."""


def read_published(folder: Path, source: str, gpus: set[str] | None = None) -> list[PublishedTime]:
    """All rows of a folder's tables that tell the time of a kernel, of some GPUs only where those are given.

    ``source`` is a name in `READERS`. Columns that are missing, and numbers that are none, are said with the row.
    """
    if not folder.is_dir():
        raise ForetraceError(f"{folder} is no folder", "Give the folder that holds the tables.")
    found: list[PublishedTime] = []
    paths = sorted(path for path in folder.rglob("*") if path.name.endswith((".csv", ".csv.gz", ".txt")))
    for path in paths:
        try:
            found += (row for row in READERS[source](path, gpus) if gpus is None or row.gpu in gpus)
        except _MissingColumnError as error:
            raise ForetraceError(
                f"{path} has no column {error.args[0]!r}",
                f"Is it a table of {source}? docs/calibrate.md names its columns.",
            ) from None
    if not paths:
        raise ForetraceError(f"{folder} holds no tables", "They are files that end in .csv, .csv.gz or .txt.")
    if not found and gpus is None:
        raise ForetraceError(
            f"{folder} holds no row of {source}'s tables", "docs/calibrate.md names its files and their columns."
        )
    return found


def device_name(name: str, where: str) -> str:
    """The shipped device that a table means.

    >>> device_name("h100_sxm", "a.csv"), device_name("NVIDIA B200", "a.csv")
    ('h100', 'b200')
    """
    found = _device_name(name)
    if found is None:
        near = get_close_matches(name.lower(), sorted(path.stem for path in DEVICES.glob("*.json")), n=1)
        meant = f"Did you mean {near[0]}? " if near else ""
        raise ForetraceError(
            f"{where}: no GPU is called {name!r}", f"{meant}`foretrace platform list` shows those that are known."
        )
    return found


@cache
def _device_name(name: str) -> str | None:
    plain = name.lower().replace("_sxm", "").replace("_", "-").replace("-server", "")
    if (DEVICES / f"{plain}.json").is_file():
        return plain
    matching = Device.matching(name)
    return matching.name if matching else None


class _MissingColumnError(Exception):
    """A column that a table of its kind has."""


def _rows(path: Path) -> Iterator[tuple[str, Row]]:
    """Where each row stands, and its columns."""
    try:
        data = read_bounded(path, MAX_TABLE_BYTES, "a table")
        rows = list(csv.DictReader(io.StringIO(data.decode("utf-8"))))
    except (OSError, EOFError, zlib.error, gzip.BadGzipFile, UnicodeDecodeError, csv.Error) as error:
        raise ForetraceError(f"{path} is no readable table ({error})", "Restore it, or leave it out.") from None
    for number, row in enumerate(rows, start=2):
        yield f"{path.name}, line {number}", row


def _text(row: Row, name: str) -> str:
    if name not in row:
        raise _MissingColumnError(name)
    return row[name] or ""


def _number(row: Row, name: str, where: str, least: float = 0.0) -> float:
    try:
        value = float(_text(row, name))
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > least):
        raise ForetraceError(
            f"{where}: {name} holds {row[name]!r}",
            f"It should be a number above {least:g}.",
        )
    return value


def _size(row: Row, name: str, where: str) -> int:
    return int(_number(row, name, where, 0.5))


# Readers

DTYPES = {"bf16": "bfloat16", "bfloat16": "bfloat16", "float16": "bfloat16", "fp8": "float8_e4m3fn"}
"""Dtypes of GEMMs that are read, as tables name them; 16-bit floats are alike."""
_AICONFIGURATOR = re.compile(
    r"_(?P<dtype>bf16|fp8)_(?P<power>power_)?(?P<gpu>[a-z0-9_]+?)(?:_sxm)?_(?P<harness>[^_]+)$"
)


def _aiconfigurator(path: Path, gpus: set[str] | None) -> Iterator[PublishedTime]:
    """Tables of ai-dynamo/aiconfigurator: GEMMs, attention, experts; of sustained power and of NCCL none."""
    stem = path.name.split(".csv")[0].removesuffix(".txt")
    named = _AICONFIGURATOR.search(stem)
    if stem.startswith("nccl") or (named and named["power"]):
        return
    if named and gpus and device_name(named["gpu"], path.name) not in gpus:
        return
    for where, row in _rows(path):
        if not named and "device" not in row:
            raise ForetraceError(
                f"{path.name} does not name its GPU", "Name it as gemm_bf16_h100_sxm_vllm-0.24.0.csv.gz."
            )
        gpu = device_name(row["device"] if "device" in row else named["gpu"] if named else "", where)
        harness = f"{row['framework']} {row['version']}" if "framework" in row else named["harness"] if named else ""
        ms = "latency" if "latency" in row else "latency_ms"
        us = 1e3 * _number(row, ms, where)
        if "isl" in row:
            yield from _aiconfigurator_attention(row, gpu, us, harness, where)
        elif "num_experts" in row:
            yield _aiconfigurator_experts(row, gpu, us, harness, where)
        else:
            dtype = DTYPES.get(row["gemm_dtype"] if "gemm_dtype" in row else named["dtype"] if named else "")
            m, n, k = (_size(row, name, where) for name in "mnk")
            if dtype:
                yield gemm_time(gpu, (m, n, k), dtype, us, harness, where)


def gemm_time(gpu: str, size: tuple[int, int, int], dtype: str, us: float, harness: str, where: str) -> PublishedTime:
    """The time of a linear layer."""
    kind = "fp8" if dtype.startswith("float8") else "bf16"
    return PublishedTime(gpu, kind, linear(*size, dtype), us, harness, size[1:], where)


def _aiconfigurator_attention(row: Row, gpu: str, us: float, harness: str, where: str) -> Iterator[PublishedTime]:
    batch, length, heads, width = (_size(row, name, where) for name in ("batch_size", "isl", "num_heads", "head_dim"))
    causal = "num_key_value_heads" in row
    shared = _size(row, "num_key_value_heads", where) if causal else heads
    if length <= FEW_QUERIES:
        return
    query, key = (batch, heads, length, width), (batch, shared, length, width)
    harness = f"{harness} {'context' if causal else 'encoder'}"
    layer = (heads, shared, width, length)
    yield PublishedTime(gpu, "attention", attention("cudnn", query, key, causal), us, harness, layer, where)
    if _text(row, "kernel_source") in ("vllm_flash_attn", "vllm_flash_attn_fa2", "vllm_vit_flash_attn_fa2"):
        yield PublishedTime(gpu, "flash", attention("flash", query, key, causal), us, harness, layer, where)


def _aiconfigurator_experts(row: Row, gpu: str, us: float, harness: str, where: str) -> PublishedTime:
    tokens, hidden, inter, topk, experts, split, spread = (
        _size(row, name, where)
        for name in ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size")
    )
    rows = max(1, tokens * topk // spread)
    op = grouped_linear(rows, max(1, experts // spread), 2 * max(1, inter // split), hidden)
    skew = _text(row, "distribution")
    layer = (hidden, inter, topk, experts, split, spread)
    return PublishedTime(gpu, "grouped", op, us, f"{harness} {skew}", layer, where, row.get("kernel_source") or "")


_XLA_DTYPES = {"bf16xbf16->bf16": "bfloat16", "f8e4m3fnxf8e4m3fn->bf16": "float8_e4m3fn"}
_XLA_GPUS = {"sm_90": "h100", "sm_100_B200": "b200", "gfx950": "mi355x"}


def _xla(path: Path, gpus: set[str] | None) -> Iterator[PublishedTime]:
    """XLA's table of GEMMs (matmul_perf_table); others of its tables are left out."""
    if "matmul" not in path.name:
        return
    for where, row in _rows(path):
        gpu, dtype = _text(row, "device"), _XLA_DTYPES.get(_text(row, "dtypes"))
        batch, m, n, k = (_size(row, name, where) for name in "bmnk")
        if dtype and batch == 1:
            gpu = device_name(_XLA_GPUS.get(gpu, gpu), where)
            yield gemm_time(gpu, (m, n, k), dtype, _number(row, "us", where), "xla", where)


_AITER_GPUS = {("gfx942", 304): "mi300x", ("gfx950", 256): "mi355x"}


def _aiter(path: Path, gpus: set[str] | None) -> Iterator[PublishedTime]:
    """AITER's tuned GEMMs: the fastest kernel for each shape, but for block-scaled ones; GPUs by their CUs."""
    for where, row in _rows(path):
        gpu = _AITER_GPUS.get((_text(row, "gfx"), _size(row, "cu_num", where)))
        kind = _text(row, "kind")
        if gpu is None or (gpus and gpu not in gpus) or kind not in ("bf16", "a8w8"):
            continue
        size = _size(row, "M", where), _size(row, "N", where), _size(row, "K", where)
        dtype = "bfloat16" if kind == "bf16" else "float8_e4m3fn"
        yield gemm_time(gpu, size, dtype, _number(row, "us", where), f"aiter {kind}", where)


VIDUR_SIZES = "num_tokens", "n_embd", "n_expanded_embd", "n_head", "n_kv_head", "num_tensor_parallel_workers"


def _vidur(path: Path, gpus: set[str] | None) -> Iterator[PublishedTime]:
    """Vidur's layers by number of tokens: their GEMMs, the median of several runs."""
    if not path.name.split(".")[0].endswith("__mlp"):
        return
    for where, row in _rows(path):
        gpu = device_name(path.name.split("_")[0], where)
        tokens, width, inner, heads, shared, split = (_size(row, name, where) for name in VIDUR_SIZES)
        head = width // heads
        up = (2 if _text(row, "use_gated_mlp") == "True" else 1) * inner
        layers = {
            "attn_pre_proj": ((heads + 2 * shared) * head // split, width),
            "attn_post_proj": (width, width // split),
            "mlp_up_proj": (up // split, width),
            "mlp_down_proj": (width, inner // split),
        }
        for name, (n, k) in layers.items():
            us = 1e3 * _number(row, f"time_stats.{name}.median", where)
            yield gemm_time(gpu, (tokens, n, k), "bfloat16", us, "vidur", where)


READERS: dict[str, Callable[[Path, set[str] | None], Iterator[PublishedTime]]] = {
    "aiconfigurator": _aiconfigurator,
    "vidur": _vidur,
    "xla": _xla,
    "aiter": _aiter,
}
"""Readers of the tables of each project."""
