"""The command that starts a script, and the step function that is suggested for one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from foretrace.graph import ForetraceError, Graph, Tensor
from foretrace.record.command import Script, find_script, parse_command, suggested_step
from foretrace.record.script import ScriptError, sketch_command
from tests.narrowing import instance, present

TRAINS = """
import argparse
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=2)
parser.add_argument("--steps", type=int, default=1000)

class Net(torch.nn.Linear):
    pass

def main():
    args = parser.parse_args()
    model = Net(8, 8).to("cuda" if torch.cuda.is_available() else "cpu")
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(args.steps):
        batch = torch.ones(args.batch, 8, device=model.weight.device)
        loss = model(batch).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 5:
            break

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(TRAINS)
    return path


def batches(graph: Graph) -> list[Tensor]:
    """What linear layers are given."""
    return [instance(Tensor, op.args[1]) for op in graph.ops if op.name == "aten::addmm"]


def test_a_command_names_its_script_and_its_arguments():
    assert parse_command("python -u train.py --batch 32") == Script(Path("train.py"), None, ("--batch", "32"), True)
    assert parse_command("/opt/venv/bin/python3.12 a/b.py 'two words'").arguments == ("two words",)
    assert parse_command("python -m pkg.train x").module == "pkg.train"
    assert parse_command("train.py:build --batch 8") == Script(Path("train.py"), "build", ("--batch", "8"))


@pytest.mark.parametrize(
    ("command", "world"),
    [
        ("torchrun --nproc_per_node=8 --nnodes 2 train.py", 16),
        ("python -m torch.distributed.run --nproc-per-node 4 train.py", 4),
        ("accelerate launch --num_processes 2 --mixed_precision bf16 train.py", 2),
        ("torchrun --standalone --nproc-per-node gpu train.py", None),
        ("uv run train.py --nproc-per-node 8", None),
    ],
)
def test_a_launcher_says_how_many_ranks_there_are(command, world):
    script = parse_command(command)
    assert (script.path, script.world, script.program) == (Path("train.py"), world, True)


def test_what_is_no_command_is_none(tmp_path):
    spaced = tmp_path / "python my train.py"
    spaced.touch()
    assert find_script(str(spaced)) == Script(spaced)
    assert find_script("a trace.json") is None and find_script("it's.json x") is None
    assert present(find_script("'my train.py' --batch 3")).path == Path("my train.py")


@pytest.mark.parametrize("command", ["srun -n 8 python train.py", "python -c pass", "torchrun --nproc-per-node 8"])
def test_a_command_that_can_not_be_sketched_is_refused_with_what_can(command):
    with pytest.raises(ForetraceError, match=r"python train\.py"):
        parse_command(command)


def test_several_traces_in_place_of_one_path_are_refused_with_how_to_give_them(tmp_path):
    files = [tmp_path / f"rank{rank}.json" for rank in range(2)]
    for file in files:
        file.touch()
    with pytest.raises(ForetraceError, match="1 more are files, and one path is asked for") as error:
        parse_command(" ".join(map(str, files)))
    assert "one folder" in str(error.value)


def test_the_loop_of_an_unchanged_script_is_sketched_with_its_arguments(script):
    graph = sketch_command(Script(script, arguments=("--batch", "48"), program=True), "cuda")
    assert [(batch.shape, batch.device) for batch in batches(graph)] == [((48, 8), "cuda:0")]
    assert {"forward", "backward", "optimizer"} <= {op.phase for op in graph.ops}
    assert graph.source == str(script) and not graph.notes


def test_a_loop_that_is_too_short_says_so_and_prints_the_function_to_write(script):
    with pytest.raises(ScriptError, match="ended after 2 steps, and 3 are needed") as failed:
        sketch_command(Script(script, arguments=("--steps", "2"), program=True))
    assert "def make_step():" in failed.value.frames and "model = Net(8, 8)" in failed.value.frames
    assert "foretrace predict" in failed.value.advice


def test_a_script_that_lacks_an_option_says_so(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--data', required=True)\np.parse_args()\n"
    )
    with pytest.raises(ScriptError, match=r"train\.py ended with 2 before it had trained") as failed:
        sketch_command(Script(script, program=True))
    assert f"foretrace predict -- python {script} --data DIR" in failed.value.advice
    assert "make_step" not in failed.value.frames


def test_a_script_that_lacks_its_data_names_it(script):
    script.write_text("data = open('tokens.bin', 'rb')\n")
    with pytest.raises(ScriptError, match=r"needs tokens\.bin: prepare its data"):
        sketch_command(Script(script, program=True))


def test_training_that_stops_on_an_answer_of_the_sketch_says_where_and_why(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import subprocess, torch\n"
        "weight = torch.nn.Parameter(torch.ones(4))\n"
        "optimizer = torch.optim.SGD([weight])\n"
        "for _ in range(100):\n"
        "    weight.sum().backward()\n"
        "    optimizer.step()\n"
        "    commit = subprocess.check_output(['git', 'log']).split()[0]\n"
    )
    with pytest.raises(ScriptError, match=r"its training got no further than train\.py:7 \(IndexError") as failed:
        sketch_command(Script(script, program=True))
    assert "leave that out of the loop" in failed.value.advice and "run git log" in failed.value.advice


def test_a_script_that_was_exported_from_a_notebook_is_sketched_without_its_commands(tmp_path):
    script = tmp_path / "notebook.py"
    script.write_text(
        "import torch\n"
        "get_ipython().system('pip install wonders')\n"
        "get_ipython().run_line_magic('matplotlib', 'inline')\n"
        "weight = torch.nn.Parameter(torch.ones(4))\n"
        "optimizer = torch.optim.SGD([weight])\n"
        "for _ in range(100):\n"
        "    weight.sum().backward()\n"
        "    optimizer.step()\n"
        "display(weight)\n"
    )
    graph = sketch_command(Script(script, program=True))
    assert "not done while sketching: run pip install wonders (notebook.py:2)" in graph.notes


def test_a_module_is_run_as_python_does(tmp_path, monkeypatch):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").touch()
    (tmp_path / "pkg" / "sizes.py").write_text("BATCH = 6\n")
    text = TRAINS.replace("import argparse\n", "import argparse\nfrom .sizes import BATCH\n").replace(
        "default=2", "default=BATCH"
    )
    (tmp_path / "pkg" / "train.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    graph = sketch_command(parse_command("python -m pkg.train"))
    assert batches(graph)[0].shape == (6, 8)


def test_the_suggested_function_holds_the_loop_and_what_it_calls():
    made = suggested_step(TRAINS, "train.py")
    compile(made, "made", "exec")
    lines = [line.strip() for line in made.splitlines()]
    assert lines.index("optimizer = torch.optim.AdamW(model.parameters())") < lines.index("def train_step():")
    assert lines.index("loss.backward()") < lines.index("return train_step")
    assert "step = 0" in lines  # the loop counts by that name
    assert "for _ in range(1):  # once" in lines  # around the loop's own break


def test_statements_of_one_line_are_suggested_once_each():
    made = suggested_step(
        "model = Net(); optimizer = SGD(model)\nfor x in loader:\n    model(x).backward(); optimizer.step()\n", "a.py"
    )
    assert "    model = Net()\n    optimizer = SGD(model)\n" in made and made.count("Net()") == 1


@pytest.mark.parametrize("source", ["trainer.fit(module)", "def (", "", "while True:\n    x = 1\n"])
def test_without_a_loop_a_usual_step_is_suggested(source):
    made = suggested_step(source, "train.py")
    compile(made, "made", "exec")
    assert "as train.py builds it" in made and "loss.backward()" in made


def test_a_suggested_step_has_what_the_loop_of_a_function_reads_and_changes():
    made = suggested_step(
        "def main():\n"
        "    device, total = 'cpu', 0\n"
        "    model = Net().to(device)\n"
        "    loader = load()\n"
        "    for epoch in range(3):\n"
        "        for place, (x, y) in enumerate(loader):\n"
        "            x = x.to(device)\n"
        "            loss = model(x, y)\n"
        "            loss.backward()\n"
        "            model.step()\n"
        "            total += epoch + place\n",
        "train.py",
    )
    made = made.replace("(..., ...)", "(Net(), 2)")

    class Net:
        def to(self, device):
            return self

        def __call__(self, x, y):
            return self

        def step(self):
            return self

        backward = step

    names: dict[str, Any] = {"Net": Net}
    exec(made, names)
    step = names["make_step"]()
    assert step() is None and step() is None
    assert "loader = " not in made


def test_the_function_to_write_takes_only_what_the_loop_sees():
    made = suggested_step(
        "class Net:\n"
        "    def forward(self, x):\n"
        "        x, n = self.scale(x), 3\n"
        "        self.parts = [n for n in x]\n"
        "        return x\n"
        "def evaluate(model):\n"
        "    total = 0\n"
        "    return total\n"
        "def main():\n"
        "    parser = Parser()\n"
        "    parser.add('--width')\n"
        "    args, sizes = parser.parse(), (1, 2)\n"
        "    def draw(n):\n"
        "        return n * args\n"
        "    model = None\n"
        "    if args:\n"
        "        model = Net()\n"
        "    for x in evaluate(model):\n"
        "        pass\n"
        "    for _ in range(9):\n"
        "        ids = [draw(n) for n in sizes]\n"
        "        x = model.forward(ids)\n"
        "        x.backward()\n",
        "train.py",
    )
    assert made.startswith("def make_step():\n    _ = 0\n    parser = Parser()\n    parser.add('--width')\n")
    assert "    if args:\n        model = Net()\n" in made and "def draw(n):" in made
    for absent in ("self.", "evaluate", "total", "nonlocal", "range(1)"):
        assert absent not in made
    compile(made, "train.py", "exec")
