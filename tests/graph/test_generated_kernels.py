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


def test_threads_side_by_side_ask_for_one_sector_or_for_one_each():
    row = kernel_facts(
        kernel("x0 = xindex\ntmp0 = tl.load(in_ptr0 + (x0), None)\ntl.store(out_ptr0 + (x0), tmp0, None)")
    )
    assert (row["read"], row["read_sectors"], row["written_sectors"]) == (65536, 8192, 8192)
    spread = kernel_facts(kernel("x0 = xindex\ntmp0 = tl.load(in_ptr0 + (16*x0), None)"))
    assert (spread["read"], spread["read_sectors"]) == (65536, 65536)
    assert (row["loads"], row["stores"], spread["stores"]) == (1, 1, 0)


def test_a_block_of_two_dimensions_is_read_along_the_one_that_lies_in_memory():
    loops = "xnumel = 512\nr0_numel = 128"
    facts = kernel_facts(kernel("x0 = xindex\nr0_1 = r0_index\ntmp0 = tl.load(in_ptr0 + (r0_1 + 128*x0), None)", loops))
    turned = kernel_facts(
        kernel("x0 = xindex\nr0_1 = r0_index\ntmp0 = tl.load(in_ptr0 + (x0 + 512*r0_1), None)", loops)
    )
    assert facts["read_sectors"] == turned["read_sectors"] == 65536 // 8
    assert (facts["inner"], turned["inner"]) == (65536, 0)


def test_random_numbers_are_the_heaviest_arithmetic():
    light, heavy = (
        kernel_facts(kernel(f"tmp1 = {call}(tmp0)"))["instructions"] for call in ("libdevice.exp", "tl.rand")
    )
    assert 1 < light < heavy


def foreach_kernel(sizes: list[int]) -> str:
    """The update of several tensors in one kernel: a branch for each of them."""
    lines = [
        "def triton_for_fused_0(in_ptr0, out_ptr0):",
        "    pid = tl.program_id(0)",
        "    XBLOCK: tl.constexpr = 1024",
    ]
    for number, size in enumerate(sizes):
        lines += [
            f"    {'el' * (number > 0)}if pid < num_xblocks_{number}:",
            f"        xnumel = {size}",
            "        r0_numel = 1",
            "        xindex = xoffset + tl.arange(0, XBLOCK)[:]",
            f"        x{number} = xindex",
            f"        tmp0 = tl.load(in_ptr{number} + (x{number}), None)",
            "        tmp1 = libdevice.exp(tmp0)",
            f"        tl.store(out_ptr{number} + (x{number}), tmp1, None)",
        ]
    pointers = ", ".join(f"{way}_ptr{number}" for way in ("in", "out") for number in range(len(sizes)))
    return "\n".join(lines).replace("in_ptr0, out_ptr0", pointers, 1)


def test_branches_of_a_foreach_kernel_are_loop_nests_of_their_own():
    sizes = [64, 2048, 32]
    facts = kernel_facts(foreach_kernel(sizes))
    assert facts["accessed"] == facts["fetched"] == sizes * 2
    assert (facts["rows"], facts["along"]) == (sum(sizes), 1)
    assert facts["instructions"] == kernel_facts(foreach_kernel([2048]))["instructions"]


def test_a_foreach_kernel_may_have_any_number_of_branches():
    facts = kernel_facts(foreach_kernel([32] * 100))
    assert facts["rows"] == 3200 and facts["accessed"] == [32] * 200


def test_a_source_that_is_no_python_says_nothing():
    assert kernel_facts("def (") == {}
