from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from foretrace.cli.app import make_app
from foretrace.graph import ForetraceError
from foretrace.whatif.changes import parallel_options
from foretrace.whatif.grammar import read_parallel

SCRIPT = """
import torch

def make_step():
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4))).to("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        model(torch.randn(8, 64, device="cuda")).square().mean().backward()
        optimizer.step()

    return step
"""


def options(text: str) -> dict[str, object]:
    return parallel_options(read_parallel(text))


def test_parallel_text_becomes_options() -> None:
    assert options("data=8, pipeline=4,microbatches=16,schedule=interleaved,chunks=2,bucket_mb=50") == {
        "data": 8,
        "pipeline": 4,
        "microbatches": 16,
        "schedule": "interleaved",
        "chunks": 2,
        "bucket_mb": 50.0,
    }


@pytest.mark.parametrize(
    "words, message",
    [
        ("tensr=2", "knows no 'tensr'"),
        ("data", "data needs a value"),
        ("sharded=1", "'1' is neither on nor off"),
        ("data=many", "'many' is no number"),
        ("", "says nothing"),
        ("data=2,data=4", "says data twice"),
    ],
)
def test_empty_parallel_text_is_refused(words: str, message: str) -> None:
    with pytest.raises(ForetraceError, match=message):
        options(words)


@given(st.text(alphabet="adtensorshrixpl=,.-0123456789 \n\t", max_size=30) | st.text(max_size=12))
def test_any_parallel_text_is_understood_or_refused_with_advice(words: str) -> None:
    try:
        found = options(words)
    except ForetraceError as error:
        assert error.advice
    else:
        assert found


def test_predict_shares_a_script_between_ranks(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done = CliRunner().invoke(make_app(["predict"]), ["predict", str(script), "--parallel", "data=2,sharded", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["world"] == 2


@pytest.mark.parametrize(("world", "advice"), [("3", "Set data=3, or give --world 2, 4"), ("2,8,9", "--world 9 is no")])
def test_ranks_that_do_not_divide_the_world_are_refused(world: str, advice: str) -> None:
    done = CliRunner().invoke(make_app(["predict"]), ["predict", "no.py", "--parallel", "data=2", "--world", world])
    assert isinstance(done.exception, ForetraceError) and advice in str(done.exception)


@pytest.mark.parametrize("words", ["data=0", "data=2,bucket_mb=nan", "data=99999999999", "overlap"])
def test_contradicting_parallel_options_are_refused_before_anything_is_read(words: str) -> None:
    done = CliRunner().invoke(make_app(["predict"]), ["predict", "nowhere.py", "--parallel", words])
    assert isinstance(done.exception, ForetraceError) and "nowhere" not in str(done.exception)
