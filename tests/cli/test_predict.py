from __future__ import annotations

import json
from pathlib import Path

import pytest

from foretrace.platform.device import DEVICES

RECORDING = Path(__file__).parents[1] / "data" / "h200" / "dlrm_default_b512"
WORDS = (
    "step_ms", "step_ms_back_to_back", "low_ms", "high_ms", "device_active_ms", "device_idle_ms",
    "exposed_communication_ms", "peak_memory_bytes", "coverage", "critical_path",
)  # fmt: skip


@pytest.mark.parametrize("kernels", ["model", "measured"])
def test_a_recording_is_predicted_with_a_range_and_its_coverage(foretrace, kernels):
    ran = foretrace("predict", RECORDING, "--on", "h200", "--kernels", kernels, "--json")
    assert ran.code == 0, ran.err
    words = json.loads(ran.out)
    assert all(word in words for word in WORDS)
    assert 0 < words["low_ms"] <= words["step_ms"] <= words["high_ms"]
    assert words["coverage"][kernels] > 0.9
    assert sum(words["coverage"].values()) == pytest.approx(1.0, abs=1e-3)


def test_kernels_of_a_recording_made_on_the_platform_are_taken_as_measured(foretrace):
    words = json.loads(foretrace("predict", RECORDING, "--on", "h200", "--json").out)
    assert words["coverage"]["measured"] == 1.0


def test_the_file_of_a_gpu_is_a_platform_too(foretrace, tmp_path):
    (tmp_path / "gpu.json").write_text((DEVICES / "a100.json").read_text().replace('"name": "a100"', '"name": "ours"'))
    ours, a100 = (
        json.loads(foretrace("predict", RECORDING, "--on", on, "--json").out)["step_ms"]
        for on in (tmp_path / "gpu.json", "a100")
    )
    assert ours == a100


def test_tables_name_the_platform_and_what_is_known(foretrace):
    ran = foretrace("predict", RECORDING, "--on", "h200", "--top", "3")
    assert ran.code == 0, ran.err
    assert "on h200" in ran.out.splitlines()[0]
    assert "known" in ran.out and "Look at these first" in ran.out


def test_the_timeline_is_written_for_perfetto(foretrace, tmp_path):
    out = tmp_path / "timeline.json"
    assert foretrace("predict", RECORDING, "--trace", out).code == 0
    assert "aten::_embedding_bag" in {event["name"] for event in json.loads(out.read_text())["traceEvents"]}
    assert foretrace("show", out).code == 0


def test_a_script_is_sketched(foretrace, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\ndef make_step():\n    w = torch.ones(512, 512, device='cuda', requires_grad=True)\n"
        "    return lambda: (w @ w).sum().backward()\n"
    )
    words = json.loads(foretrace("predict", script, "--on", "h200", "--json").out)
    assert words["device_active_ms"] > 0 and words["source"] == str(script)


DOUBTFUL = """import torch; unknown = lambda module, inputs: 1 / 0
def make_step():
    model = torch.compile(torch.nn.Linear(int(torch.randint(8, 9, ())), 8), backend=unknown).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    def step():
        loss = model(torch.randn(4, 1, device="cuda")).sum()
        loss.backward()
        if loss < 8:
            optimizer.step()
    return step
"""
CAUTIONS = (
    "assumed while the model was built: 1 for an integer, perhaps a size (train.py:3)",
    "assumed in the step, and decisive: False for a flag (train.py:8)",
    "weights without an update: 2 weights of 2 with gradients (train.py:5)",
    "torch.compile was left out: 1 compiled region is predicted as eager code (ZeroDivisionError: division by zero)",
)


def test_what_makes_a_sketch_doubtful_is_in_the_headline_the_json_and_the_page(foretrace, tmp_path):
    script, page = tmp_path / "train.py", tmp_path / "page.html"
    script.write_text(DOUBTFUL)
    words = json.loads(foretrace("predict", script, "--on", "h200", "--html", page, "--json").out)
    assert words["cautions"] == list(CAUTIONS)
    assert set(CAUTIONS) <= set(words["notes"])
    headline, _, rest = foretrace("predict", script, "--on", "h200").out.partition("Look at these first")
    said = " ".join(headline.split())
    assert all(caution in said for caution in CAUTIONS)
    assert headline.index("caution") < headline.index("step    ")
    assert not any(caution in " ".join(rest.split()) for caution in CAUTIONS), "said once"
    top = page.read_text().partition('<div class="answer">')[0]
    assert all(f'<p class="wrong">{caution}</p>' in top for caution in CAUTIONS)


def test_a_what_if_of_a_doubtful_sketch_says_so_first(foretrace, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(DOUBTFUL)
    ran = foretrace("whatif", script, "--on", "h200", "--set", "dtype=bf16")
    headline = " ".join(ran.out[: ran.out.index("kernels")].split())
    assert ran.code == 0 and all(caution in headline for caution in CAUTIONS)


LOOP = """
import sys, torch
model = torch.nn.Linear(8, 8).to("cuda")
optimizer = torch.optim.AdamW(model.parameters())
batch = torch.ones(int(sys.argv[1]), 8, device="cuda")
for _ in range(int(sys.argv[2])):
    model(batch).sum().backward()
    optimizer.step()
"""


def test_a_command_is_sketched_with_its_arguments_and_changed_too(foretrace, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(LOOP)
    command = ("--", "python", script, "4096", "1000")
    forecast = json.loads(foretrace("predict", "--on", "h200", "--json", *command).out)
    assert forecast["source"] == str(script) and forecast["step_ms"] > 0
    changed = json.loads(foretrace("whatif", "--set", "batch=65536", "--json", *command).out)
    assert changed["before"]["samples"] == 4096 and changed["after"]["samples"] == 65536
    points = json.loads(foretrace("sweep", "--set", "batch=1024,8192", "--json", *command).out)["points"]
    assert sorted(point["samples"] for point in points) == [1024, 8192]


def test_a_command_that_trains_too_little_ends_with_what_to_do(foretrace, tmp_path):
    script, page = tmp_path / "train.py", tmp_path / "page.html"
    script.write_text(LOOP)
    ran = foretrace("predict", "--html", page, "--", "python", script, "4", "1")
    assert ran.code == 2 and "Let it train longer" in ran.err and "def make_step():" in ran.err
    assert not page.exists()


def test_an_output_that_is_the_script_of_a_command_is_refused(foretrace, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(LOOP)
    ran = foretrace("predict", "--html", script, "--", "python", script)
    assert ran.code == 2 and "which is read" in ran.err and script.read_text() == LOOP


@pytest.mark.parametrize("words", [("predict", "other.py"), ("sweep", "--set", "batch=64", "4096"), ("whatif", "8")])
def test_words_after_a_script_that_are_no_arguments_of_it_are_refused(
    foretrace, script: Path, words: tuple[str, ...]
) -> None:
    ran = foretrace(words[0], script, *words[1:])
    assert ran.code == 2 and not ran.out and ran.err.count("\n") == 1
    assert f"{words[-1]} after {script} is not understood" in ran.err and "come after --" in ran.err
    ran = foretrace("predict", script, words[-1], "--", "--batch", 32)
    assert ran.code == 2 and f"{words[-1]} after {script} is not understood" in ran.err


@pytest.mark.parametrize("before", [(), ("--",)])
def test_words_after_two_dashes_are_arguments_of_the_script(foretrace, script: Path, before: tuple[str, ...]) -> None:
    script.write_text(f"import sys\nassert sys.argv[1:] == ['--batch', '32']\n{script.read_text()}")
    given = (*before, script, "--batch", 32) if before else (script, "--", "--batch", 32)
    assert foretrace("predict", *given).code == 0


@pytest.mark.parametrize("words", [("srun", "python", "train.py"), ("a.json", "b.json"), ("train.py", "--batch", "8")])
def test_words_that_are_no_command_say_how_one_is_written(foretrace, words):
    ran = foretrace("predict", *words)
    assert ran.code == 2 and ("-- python train.py" in ran.err or "`python train.py …`" in ran.err)


def test_a_script_that_fails_shows_its_own_frames_and_no_others(foretrace, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import torch\ndef step():\n    torch.randn(3).long().bincount()\n")
    ran = foretrace("predict", script)
    assert ran.code == 2 and "aten.bincount" in ran.err and "foretrace record" in ran.err
    assert "line 3, in step" in ran.err and "site-packages" not in ran.err and "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "nowhere"),
        ([""], "empty"),
        ([RECORDING, "--on", "abacus"], "abacus"),
        ([RECORDING, "--step", "ProfilerStep#99"], "ProfilerStep#99"),
        ([RECORDING, "--on", __file__], "is no platform: one is a folder, or a GPU's file"),
        (["--", "torchrun"], "`torchrun` names no Python script"),
        (["--", "python", "-m", "nowhere_at_all"], "no module nowhere_at_all is found. Start Foretrace where"),
    ],
)
def test_what_is_not_there_is_named(foretrace, words, said):
    ran = foretrace("predict", *words)
    assert ran.code == 2 and said in ran.err and ran.err.count("\n") == 1


def test_a_folder_that_is_called_as_a_script_is_named(foretrace, tmp_path):
    folder = tmp_path / "train.py"
    folder.mkdir()
    assert foretrace("predict", folder).err == f"foretrace: {folder} is a folder, not a script. Give a script in it.\n"


def test_a_script_is_no_trace_and_the_error_says_what_takes_it(foretrace, script):
    assert f"foretrace predict {script}" in foretrace("show", script).err


def test_a_trace_without_shapes_says_how_to_get_them(foretrace, trace):
    ran = foretrace("predict", trace, "--kernels", "model")
    assert ran.code == 2 and "record_shapes" in ran.err
    assert foretrace("predict", trace, "--kernels", "measured").code == 0


def test_every_option_is_in_its_page(foretrace, request):
    page = (request.config.rootpath / "docs" / "predict.md").read_text()
    shown = foretrace("predict", "--help").out
    options = {word for word in shown.replace(",", " ").split() if word.startswith("--")} - {"--help"}
    assert options and all(option in page for option in options)


def test_a_profiled_job_keeps_its_own_machine(foretrace, shared, tmp_path):
    job, out = shared / "public" / "megatron_tp2_2xV100", tmp_path / "timeline.json"
    ran = foretrace("predict", job, "--slow-host", "1=1.5", "--trace", out, "--json")
    assert ran.code == 0, ran.err
    words = json.loads(ran.out)
    assert (words["platform"], words["fabric"]) == ("its own machine", "v100-2x-pcie")
    assert set(words["wait_ms"]) == {"0", "1"} and len(words["ranks"]) == 2
    assert any("assumed, not measured" in note for note in words["notes"])
    assert "rank 1" in out.read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--slow-host", "fast"], "'fast' names no rank"),
        (["--slow-link", "0=0"], "can't have 0 times its speed"),
        (["--slow-link", "0=5"], "can't have 5 times its speed"),
        (["--slow-host", "0=1.2", "--slow-host", "0=2"], "rank 0 is named twice"),
        (["--host-of", "0"], "'0' names no rank and its number. Write for instance 3=1"),
        (["--world", "many"], "'many' is no number of ranks"),
        (["--world", ""], "'' is no number of ranks"),
        (["--parallel", ""], "--parallel says nothing"),
        (["--world", "1,2", "--trace", "timeline.json"], "--trace is the timeline of one job"),
        (["--on", "h200:nvlink=2"], "Name one with --fabric"),
        (["--fabric", "string", "--world", "2"], "no fabric is called 'string'"),
    ],
)
def test_wrong_options_of_a_job_are_refused(foretrace, words, said):
    ran = foretrace("predict", RECORDING, "--on", "h200", *words)
    assert ran.code == 2 and said in " ".join(ran.err.split()) and "Traceback" not in ran.err


def test_several_worlds_make_a_curve(foretrace):
    ran = foretrace("predict", RECORDING, "--on", "h200", "--world", "1,2,...,8", "--json")
    assert ran.code == 0, ran.err
    assert [row["world"] for row in json.loads(ran.out)["scaling"]] == [1, 2, 4, 8]
    assert "Scaling" in foretrace("predict", RECORDING, "--on", "h200", "--world", "1,8").out


def test_a_script_of_one_rank_finds_its_group(foretrace, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "def step():\n    dist.all_reduce(torch.ones(1 << 20, device='cuda') / dist.get_world_size())\n"
    )
    refused = foretrace("predict", script)
    assert refused.code == 2 and "--world N" in refused.err and "torchrun" in refused.err
    assert json.loads(foretrace("predict", script, "--world", "4", "--json").out)["exposed_communication_ms"] > 0
    rows = json.loads(foretrace("predict", script, "--world", "1,2,8", "--json").out)["scaling"]
    assert rows[2]["step_ms"] > rows[0]["step_ms"]


@pytest.mark.parametrize("asked", ["os.environ['RANK']", "dist.init_process_group('gloo')"])
def test_a_script_for_torchrun_needs_a_world(foretrace, tmp_path, asked):
    script = tmp_path / "train.py"
    script.write_text(
        "import os, torch, torch.distributed as dist\n"
        f"def make_step():\n    {asked}\n"
        "    return lambda: dist.all_reduce(torch.ones(1 << 20, device='cuda'))\n"
    )
    refused = foretrace("predict", script)
    assert refused.code == 2 and "--world N" in refused.err
    assert json.loads(foretrace("predict", script, "--world", "4", "--json").out)["exposed_communication_ms"] > 0


def test_reserved_memory_and_its_verdict_are_in_the_json(foretrace, tmp_path):
    ran = foretrace("predict", RECORDING, "--on", "h200", "--json", "--memory-viz", tmp_path / "memory.pickle")
    words = json.loads(ran.out)
    assert words["peak_memory_bytes"] <= words["reserved_memory_bytes"] < sum(words["memory_by_kind"].values())
    assert words["memory_verdict"] == "fits" and words["to_fit"] == []
    assert (tmp_path / "memory.pickle").stat().st_size > 10_000


def test_settings_of_the_allocator_are_taken_or_refused(foretrace):
    def reserved(conf: str) -> int:
        options = ("--json", "--alloc-conf", conf) if conf else ("--json",)
        return int(json.loads(foretrace("predict", RECORDING, "--on", "h200", *options).out)["reserved_memory_bytes"])

    assert reserved("expandable_segments:True") != reserved("")
    ran = foretrace("predict", RECORDING, "--on", "h200", "--alloc-conf", "expandable_segments:maybe")
    assert ran.code == 2 and "can't be 'maybe'" in ran.err
    ran = foretrace("predict", RECORDING, "--on", "h200", "--alloc-conf", "expandable_segments")
    assert ran.code == 2 and "no option of the allocator with its value" in ran.err


def test_a_step_that_does_not_fit_says_what_would(foretrace):
    ran = foretrace("predict", RECORDING, "--on", "h200:memory=0.01")
    assert "does NOT fit in" in ran.out and "missing" in ran.out and "to fit" in ran.out


def test_a_recorded_job_of_cpus_is_predicted_on_gpus_and_where_it_ran(foretrace, tmp_path):
    job = Path(__file__).parents[2] / "examples" / "dlrm-4-ranks"
    moved = foretrace("predict", job, "--on", "h200", "--json")
    assert moved.code == 0, moved.err
    facts = json.loads(moved.out)
    assert facts["world"] == 4 and facts["kernels"] > 100
    assert any(note.startswith("recorded on a CPU") for note in facts["notes"])
    assert foretrace("platform", "fabric", "--from", job, "--out", tmp_path / "gloo").code == 0
    ran = foretrace("predict", job, "--fabric", tmp_path / "gloo")
    assert ran.code == 0 and "rank 2 holds them back" in ran.out
    assert "GiB" not in ran.out and "of the device time" not in ran.out, "no device has a part in it"


def test_a_prediction_of_a_recorded_step_says_what_was_measured(foretrace, tmp_path):
    ran = foretrace("predict", RECORDING, "--on", "h200", "--json")
    said = json.loads(ran.out)
    assert [
        note for note in said["cautions"] if note.startswith("the recorded step took another time: 3.36 ms on NVIDIA")
    ]
    other = foretrace("predict", RECORDING, "--on", "a100", "--json")
    assert "took" not in str(json.loads(other.out)["cautions"]), "of another device nothing was measured"
