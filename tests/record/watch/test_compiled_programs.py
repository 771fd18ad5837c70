"""Programs that torch.compile generated: what their kernels do."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from foretrace.graph import Op, Tensor
from foretrace.record.recording import _work_of
from foretrace.record.watch import compiled_programs
from foretrace.record.watch.compiled_programs import Program, compilation

SOURCE = """
triton_poi_fused_add_0 = async_compile.triton('triton_poi_fused_add_0', '''
import triton
@triton.jit
def triton_poi_fused_add_0(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 64
    x0 = xindex
    tmp0 = tl.load(in_ptr0 + (x0), None)
    tl.store(out_ptr0 + (x0), tmp0, None)
''', device_str='cuda')
"""


def test_what_the_sources_of_kernels_say_is_kept_with_the_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch._dynamo.utils")
    monkeypatch.setattr(compiled_programs, "_generated", {})
    program = Program.__new__(Program)
    program.compiled(SimpleNamespace(source_code=SOURCE))
    (facts,) = compilation()["kernels"]["triton_poi_fused_add_0"]
    assert facts["accessed"] == [64, 64]


def test_a_compilation_ends_well_whatever_the_recorder_can_not_read_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    made = SimpleNamespace(source_code=SOURCE, current_callable=lambda inputs: "ran")
    compiler = SimpleNamespace(_compile_fx_inner=lambda module, inputs: made)
    monkeypatch.setitem(sys.modules, compiled_programs.COMPILER, compiler)

    def unreadable(source: str) -> None:
        raise RuntimeError("not foreseen")

    monkeypatch.setattr(compiled_programs, "kernel_facts", unreadable)
    compiled_programs._follow()
    compiled = compiler._compile_fx_inner(torch.fx.symbolic_trace(torch.nn.Identity()), [])
    assert compiled.current_callable([]) == "ran"


def test_a_launch_gets_the_facts_of_the_kernel_of_its_name_that_has_as_many_tensors() -> None:
    one, two = {"accessed": [8], "rows": 8}, {"accessed": [8, 8], "rows": 8}
    op = Op("triton_poi_fused_add_0", (Tensor((8,), "float32"), Tensor((8,), "float32"), 8, 0))
    assert _work_of(op, [one, two]) == two
    assert _work_of(op, [one]) == _work_of(op, "nonsense") == {}
