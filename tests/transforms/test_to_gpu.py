"""A step that was recorded on a CPU, put on a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

import gpt
import resnet
from foretrace import api
from foretrace.api import predict
from foretrace.graph import Job
from foretrace.record.sketch.sketch import sketch
from foretrace.transforms.to_gpu import NOTE, NOTHING_THERE, SKETCHED, on_gpu


@pytest.mark.parametrize("example", [gpt, resnet])
def test_a_step_of_a_cpu_is_about_that_of_a_gpu(example):
    def build(device):
        return lambda: example.make_step(device=device, preset="tiny")

    there, here = sketch(build("cuda"), device="cuda"), sketch(build("cpu"))
    assert here.lies_on_host and not there.lies_on_host
    moved = on_gpu(here)
    assert NOTE in moved.notes and not moved.lies_on_host
    truth, guess = (predict(graph, on="h200") for graph in (there, moved))
    assert guess.device_active_ms == pytest.approx(truth.device_active_ms, rel=0.5)
    assert guess.peak_memory_bytes == pytest.approx(truth.peak_memory_bytes, rel=0.2)


def test_a_recording_of_a_cpu_is_moved_where_a_gpu_is_asked_for_and_no_job_of_several_ranks_is(monkeypatch):
    here = sketch(lambda: gpt.make_step(device="cpu", preset="tiny"))

    def load_as(world):
        monkeypatch.setattr(api, "load", lambda *paths, **options: Job([replace(here, world=world)], "run"))

    for world, device, expected in ((2, "cuda", True), (1, "cpu", True), (1, "cuda", False)):
        load_as(world)
        assert api.read("run", device).graphs[0].lies_on_host is expected
    report = predict("run", on="h200")
    assert NOTE in report.cautions and report.device_active_ms > 0


def test_a_script_of_a_cpu_is_predicted_as_if_its_tensors_lay_on_the_gpu(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\nmodel = torch.nn.Linear(64, 64)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(100):\n    model(torch.ones(8, 64)).sum().backward()\n    optimizer.step()\n"
    )
    report = predict(f"python {script}", on="h200")
    assert report.device_active_ms > 0 and [c for c in report.cautions if c.startswith(NOTHING_THERE)] == [SKETCHED]
