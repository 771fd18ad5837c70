"""Inside a process of a recorded job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from foretrace.record.watch import attach, session
from foretrace.record.watch.launch import launch
from tests.record.jobs import SHORT, SHORT_STEPS, script

PYTHON = sys.executable
INJECTED = Path(attach.__file__).parents[1] / "inject"


def run(code: str, *path: Path, orders: dict[str, object] | None = None, flags: tuple[str, ...] = ()) -> str:
    """What a process prints that a recorder is attached to."""
    orders = {"out": "/nowhere", "stop": False, **SHORT} | (orders or {})
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (INJECTED, *path))),
        attach.ORDERS: json.dumps(orders),
    }
    done = subprocess.run([PYTHON, *flags, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_a_job_that_never_imports_torch_loads_nothing() -> None:
    printed = run("import sys; print([n for n in ('torch', 'numpy', 'msgspec', 'typer') if n in sys.modules])")
    assert printed == "[]\n"


def test_torch_is_imported_as_usual() -> None:
    code = "import torch, importlib.util; print(importlib.util.find_spec('torch').origin == torch.__file__)"
    assert run(code) == "True\n"


def test_a_site_s_own_customisation_still_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.customised = 'by the site'")
    code = "import sitecustomize, sys; print(customised, sitecustomize.__file__, 'foretrace' in sys.modules)"
    assert run(code, tmp_path) == f"by the site {tmp_path / 'sitecustomize.py'} True\n"


def test_the_folder_with_our_customisation_is_off_the_path_again() -> None:
    assert run(f"import sys; print({str(INJECTED)!r} in sys.path)") == "False\n"


HIDE = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name == "foretrace":
            raise ModuleNotFoundError("hidden from sys.path")
sys.meta_path.insert(0, Hide())
"""


def test_a_job_is_recorded_in_an_environment_without_foretrace() -> None:
    """The package is loaded from where the recorder lies: nothing on the path may have to know its name."""
    code = "\n".join([
        HIDE,
        f"exec(open({str(INJECTED / 'sitecustomize.py')!r}).read(), "
        f"{{'__file__': {str(INJECTED / 'sitecustomize.py')!r}, '__name__': 'x'}})",
        "import torch",
        f"import foretrace; print(foretrace.__file__ == {str(INJECTED.parents[1] / '__init__.py')!r})",
        "from foretrace.record.watch import session; print(session._running is not None)",
    ])  # fmt: skip
    environment = {**os.environ, attach.ORDERS: json.dumps({"out": "/nowhere", "stop": False, **SHORT})}
    done = subprocess.run([PYTHON, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout == "True\nTrue\n", done.stderr


def test_a_recorder_that_cannot_begin_lets_the_job_import_torch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(session, "open_session", lambda *_: 1 / 0)
    executed = []

    class Loader:
        def exec_module(self, module: object) -> None:
            executed.append(module)

    orders = {"out": "x", "stop": False, **SHORT}
    attach._Loader(Loader(), lambda: attach.try_to_begin(orders)).exec_module(sys)  # type: ignore[arg-type]
    assert executed == [sys]
    assert "can't record this process (division by zero)" in capsys.readouterr().err


def test_damaged_orders_leave_the_job_alone() -> None:
    environment = {**os.environ, "PYTHONPATH": str(INJECTED), attach.ORDERS: "{"}
    done = subprocess.run([PYTHON, "-c", "print('trained')"], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert "can't record this process" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
def test_processes_that_a_job_starts_are_recorded_by_their_rank(tmp_path: Path) -> None:
    """torch.multiprocessing sets none of torchrun's variables: the process group knows who is who."""
    spawning = f"""
import torch.distributed as dist

def work(rank, store):
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
    for _ in range({SHORT_STEPS}):
        step()
    dist.destroy_process_group()

if __name__ == "__main__":
    torch.multiprocessing.spawn(work, ({str(tmp_path / "store")!r},), nprocs=2)
"""
    assert launch([PYTHON, str(script(tmp_path, spawning))], tmp_path / "r", **SHORT) == 0
    assert sorted(path.name for path in (tmp_path / "r").iterdir()) == ["job.json", "rank-0", "rank-1"]
    assert json.loads((tmp_path / "r" / "job.json").read_text())["world"] == 2
