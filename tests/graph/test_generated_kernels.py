"""What the source of a generated kernel says."""

from __future__ import annotations

from foretrace.graph.generated_kernels import kernel_facts, written_arguments

SOURCE = """
@triton_heuristics.pointwise(inductor_meta={'mutated_arg_names': ['in_ptr1'], 'num_load': 2})
@triton.jit
def triton_poi_fused_add_0(in_ptr0, in_ptr1, in_out_ptr0,
                           out_ptr1, ks0, xnumel, XBLOCK : tl.constexpr):
    pass
"""


def test_outputs_and_what_is_changed_in_place_are_written():
    assert written_arguments(SOURCE) == [False, True, True, True]


def kernel(body: str, loops: str = "xnumel = 65536") -> str:
    head = "def triton_poi_fused_0(in_ptr0, in_ptr1, out_ptr0, xnumel, XBLOCK : tl.constexpr):"
    return "\n    ".join([head, *loops.splitlines(), *body.splitlines()])


def test_what_is_broadcast_is_accessed_once():
    facts = kernel_facts(kernel("x0 = (xindex % 256)\ntmp0 = tl.load(in_ptr1 + (x0), None)"))
    assert facts["accessed"] == [0, 256, 0]


def test_neighbours_that_are_far_apart_in_memory_are_fetched_with_what_lies_beside_them():
    turned = "x0 = (xindex % 256)\nx1 = xindex // 256\ntmp0 = tl.load(in_ptr0 + (x1 + 4096*x0), None)"
    facts = kernel_facts(kernel(turned))
    assert (
        facts["accessed"][0] == 65536 and facts["fetched"][0] == 2 * 65536
    )  # four rows of a sector's eight are wanted


def test_reading_in_two_loops_counts_twice_and_rows_that_were_looked_up_count_as_indirect():
    twice = """for r0_offset in tl.range(0, r0_numel, R0_BLOCK):
    r0_1 = r0_index
    tmp0 = tl.load(in_ptr0 + (r0_1 + 512*x0), None)
for r0_offset in tl.range(0, r0_numel, R0_BLOCK):
    r0_1 = r0_index
    tmp1 = tl.load(in_ptr0 + (r0_1 + 512*x0), None)
    tmp2 = tl.load(in_ptr1 + (r0_1 + 512*tmp1), None)"""
    facts = kernel_facts(kernel("x0 = xindex\n" + twice, "xnumel = 128\nr0_numel = 512"))
    assert facts["accessed"][:2] == [2 * 65536, 65536] and facts["indirect"] == 1
    assert (facts["rows"], facts["along"], facts["loops"]) == (128, 512, 2)


def test_random_numbers_are_the_heaviest_arithmetic():
    light, heavy = (
        kernel_facts(kernel(f"tmp1 = {call}(tmp0)"))["instructions"] for call in ("libdevice.exp", "tl.rand")
    )
    assert 1 < light < heavy


def test_a_source_that_is_no_python_says_nothing():
    assert kernel_facts("def (") == {}
