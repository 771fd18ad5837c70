"""What is noted of PyTorch's switches, in whichever words a script sets them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

import foretrace as ft
from foretrace.graph import Graph, OpTable, Tf32
from foretrace.record.watch.context import settings
from tests import warm

NEW_WORDS = hasattr(torch.backends.cuda.matmul, "fp32_precision")


SCRIPT = """
import json, warnings
import torch
from foretrace.record.watch.context import settings
warnings.simplefilter("error")
matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
{line}
print(json.dumps(settings()))
"""


def _tf32_after(line: str, folder: Path) -> Tf32:
    """As a process of its own has it: what is set in the newer words can't be taken back in the older ones."""
    script = folder / "script.py"
    script.write_text(SCRIPT.format(line=line))
    done = warm.run([sys.executable, str(script)])
    assert done.returncode == 0, done.stderr
    return Graph(OpTable.of([]), settings=json.loads(done.stdout)).tf32


def test_left_alone_only_convolutions_may_use_tf32() -> None:
    assert Graph(OpTable.of([]), settings=settings()).tf32 == Graph(OpTable.of([])).tf32 == Tf32(False, True)


@pytest.mark.parametrize(
    "line", ["matmul.allow_tf32 = True", "torch.set_float32_matmul_precision('high')"] + (
        ["matmul.fp32_precision = 'tf32'", "torch.backends.fp32_precision = 'tf32'"] if NEW_WORDS else []
    )
)  # fmt: skip
def test_products_that_may_use_tf32_are_noted(line: str, tmp_path: Path) -> None:
    assert _tf32_after(line, tmp_path) == Tf32(True, True)


@pytest.mark.parametrize("line", ["cudnn.allow_tf32 = False"] + ["cudnn.conv.fp32_precision = 'ieee'"] * NEW_WORDS)
def test_convolutions_that_must_not_are_noted(line: str, tmp_path: Path) -> None:
    assert _tf32_after(line, tmp_path) == Tf32(False, False)


def test_a_sketch_carries_them() -> None:
    graph = ft.sketch(lambda: torch.ones(2, 2) @ torch.ones(2, 2))
    assert graph.settings["matmul_precision"] == "highest"
