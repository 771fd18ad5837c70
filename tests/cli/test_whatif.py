"""`foretrace whatif` and `foretrace sweep` on the command line."""

from __future__ import annotations

import json

import pytest


def test_a_what_if_shows_before_and_after(foretrace, script):
    ran = foretrace("whatif", script, "--set", "batch=512", "--set", "optimizer=fused")
    assert ran.code == 0, ran.err
    assert "with batch=512, optimizer=fused" in ran.out and "times as fast" in ran.out


def test_a_script_is_compiled_on_paper(foretrace, script):
    ran = foretrace("whatif", script, "--set", "compile=on", "--json")
    assert ran.code == 0, ran.err
    words = json.loads(ran.out)
    assert any(note.startswith("compiled: 2 programs with ") for note in words["notes"])
    assert not any("left out" in note for note in words["after"]["notes"])
    assert any("triton" in row["name"] for row in words["after"]["by_op"])


def test_what_can_not_be_compiled_on_paper_is_refused(foretrace, script):
    unknown = foretrace("whatif", script, "--set", "compile=faster")
    assert unknown.code == 2 and "Write one of on, reduce-overhead, off" in unknown.err
    swept = foretrace("sweep", script, "--set", "compile=on,off", "--workers", "1")
    assert "needs a script that is sketched anew" in " ".join((swept.out + swept.err).split())


def test_a_sweep_gives_every_point(foretrace, script):
    ran = foretrace("sweep", script, "--set", "batch=512,1024", "--price", "h200=3.5", "--workers", "1", "--json")
    assert ran.code == 0, ran.err
    words = json.loads(ran.out)
    assert len(words["points"]) == 2 and words["best"]["cost"] > 0


def test_a_sweep_is_written_as_a_page(foretrace, script, tmp_path):
    page = tmp_path / "sweep.html"
    ran = foretrace("sweep", script, "--set", "batch=512,1024", "--workers", "1", "--html", page)
    assert ran.code == 0, ran.err
    assert "batch=1024 on h200" in page.read_text()


def test_a_job_is_asked_what_if(foretrace, script):
    ran = foretrace(
        "whatif", script, "--parallel", "data=4", "--set", "overlap=off", "--set", "world=8", "--set", "data=8"
    )
    assert ran.code == 0, ran.err
    assert "4 → 8" in ran.out and "exposed" in ran.out


def test_a_sweep_of_jobs_tells_what_it_left_out(foretrace, script):
    ran = foretrace("sweep", script, "--world", "4,8", "--set", "data=4", "--fabric", "h100-8x", "--workers", "1")
    assert ran.code == 0, ran.err
    assert "data=4 makes 4 ranks, not 8" in ran.out and "connected by h100-8x" in ran.out and ": 1 point" in ran.out


def test_ways_that_contradict_each_other_are_refused_before_a_script_is_read(foretrace, tmp_path):
    ran = foretrace("whatif", tmp_path / "nowhere.py", "--world", "8", "--set", "tensor=3")
    assert ran.code == 2 and "tensor=3 does not divide 8 ranks" in ran.err


@pytest.mark.parametrize(("subcommand", "text"), [("whatif", "batch=0"), ("whatif", "bacth=8"), ("sweep", "batch=8,x")])
def test_a_wrong_change_is_refused_in_one_line(foretrace, script, subcommand, text):
    ran = foretrace(subcommand, script, "--set", text)
    assert ran.code == 2 and ran.err.startswith("foretrace: ") and "Traceback" not in ran.err


def test_what_is_set_twice_is_refused(foretrace, script):
    ran = foretrace("whatif", script, "--set", "batch=64", "--set", "batch=128")
    assert ran.code == 2 and "batch is set twice. Leave batch=64 or batch=128 out." in ran.err
    ran = foretrace("sweep", script, "--set", "batch=256", "--set", "batch=512")
    assert ran.code == 2 and "batch is given twice" in ran.err
    ran = foretrace("sweep", script, "--set", "batch=64", "--price", "h200=1", "--price", "h200=2")
    assert ran.code == 2 and "h200 is given twice" in ran.err


def test_an_option_that_says_half_is_refused(foretrace, script):
    ran = foretrace("whatif", script, "--insert", "dropout")
    assert ran.code == 2 and "write it like dropout:gelu" in ran.err
    ran = foretrace("sweep", script, "--set", "batch=64", "--on", "h200,")
    assert ran.code == 2 and "names no platform" in ran.err


@pytest.mark.parametrize("memory", ["-1", "0", "nan", "inf"])
def test_a_limit_that_holds_nothing_is_refused(foretrace, script, memory):
    ran = foretrace("sweep", script, "--set", "batch=64", "--memory", memory)
    assert ran.code == 2 and "invalid value for --memory: n" in ran.err


def test_a_sweep_without_a_point_fails_and_says_why(foretrace, script):
    ran = foretrace("sweep", script, "--set", "batch=0.5")
    assert ran.code == 2
    ran = foretrace("sweep", script, "--set", "tensor=7", "--world", "7")
    assert ran.code == 2 and "no point can be made" in ran.out and "Left out: 1 point" in ran.out


def test_another_batch_is_judged_by_the_sample(foretrace, script):
    ran = foretrace("whatif", script, "--set", "batch=512")
    assert ran.code == 0 and "of 32 → 512 samples" in " ".join(ran.out.split())
    words = json.loads(foretrace("whatif", script, "--set", "batch=512", "--json").out)
    before, after = words["sample_us"]
    assert (words["before"]["samples"], words["after"]["samples"]) == (32, 512) and after < before / 4
    assert before == pytest.approx(words["before"]["step_ms_back_to_back"] * 1e3 / 32, rel=1e-3)


def test_where_the_batch_stays_no_line_speaks_of_samples(foretrace, script):
    assert "\n  sample" not in foretrace("whatif", script, "--set", "optimizer=fused").out


def test_a_batch_that_the_inputs_disagree_on_is_asked_for_and_may_be_stated_in_two_ways(foretrace, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\ndef make_step():\n"
        "    layer = torch.nn.Linear(12, 12).to('cuda')\n"
        "    data, table = torch.randn(8, 12, device='cuda'), torch.randn(12, 12, device='cuda')\n"
        "    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)\n"
        "    def step():\n        (layer(data) + table.sum(0)).sum().backward()\n        optimizer.step()\n"
        "    return step\n"
    )
    refused = foretrace("whatif", script, "--set", "batch=16")
    assert refused.code == 2 and "is not clear: the first dimensions of its inputs are 8, 12" in refused.err
    assert "--batch-was" in refused.err
    first, second = (foretrace("whatif", script, *words) for words in (["--set", "batch=16/8"], STATED))
    assert first.code == 0 and first.out == second.out, first.err
    headline = first.out[: first.out.index("step  ")]
    assert "batch" in headline and "8 → 16" in headline and "as you said" in headline


STATED = ["--set", "batch=16", "--batch-was", "8"]


def test_the_batch_that_was_found_is_said_before_the_figures(foretrace, script):
    headline = foretrace("whatif", script, "--set", "batch=512").out.partition("sample  ")[0]
    assert "32 → 512" in headline and "found in the step; batch=512/OLD if that is wrong" in " ".join(headline.split())


WRITES = """
import torch

open("written.txt", "w").close()

def make_step():
    with torch.device("cuda"):
        table, model, ids = torch.nn.EmbeddingBag(1000, 64), torch.nn.Linear(64, 8), torch.randint(0, 1000, (32, 4))
    update = torch.optim.SGD([*table.parameters(), *model.parameters()])

    def step():
        update.zero_grad()
        model(table(ids)).sum().backward()
        update.step()

    return step
"""
NOT_DONE = "not done while sketching: "


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("whatif", ["--set", "dtype=bf16"]),
        ("sweep", ["--set", "dtype=bf16"]),
        ("shard", ["--world", 2, "--seconds", 1]),
        ("advise", ["--workers", 1]),
    ],
)
def test_what_a_sketch_did_not_do_is_in_every_form_of_an_answer(foretrace, tmp_path, command, options):
    script, page = tmp_path / "emb.py", tmp_path / "page.html"
    script.write_text(WRITES)
    shown = foretrace(command, script, *options, *(["--html", page] if command != "advise" else []))
    assert shown.code == 0 and shown.out.count(NOT_DONE) == 1 and "written.txt" in shown.out
    notes = json.loads(foretrace(command, script, *options, "--json").out)["notes"]
    assert len([note for note in notes if note.startswith(NOT_DONE)]) == 1
    if command != "advise":
        assert page.read_text().count(f"<li>{NOT_DONE}") == 1
