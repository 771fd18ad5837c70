"""Which arguments of a generated kernel are written."""

from __future__ import annotations

from foretrace.record.sketch.compiled.program import written_arguments

SOURCE = """
@triton_heuristics.pointwise(inductor_meta={'mutated_arg_names': ['in_ptr1'], 'num_load': 2})
@triton.jit
def triton_poi_fused_add_0(in_ptr0, in_ptr1, in_out_ptr0,
                           out_ptr1, ks0, xnumel, XBLOCK : tl.constexpr):
    pass
"""


def test_outputs_and_what_is_changed_in_place_are_written():
    assert written_arguments(SOURCE) == [False, True, True, True]
