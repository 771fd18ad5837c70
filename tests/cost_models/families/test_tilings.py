import numpy as np
import pytest

from foretrace.cost_models.kernels.kernel_names import SIDES, Kernel, on_kernel, tiled

NAMES = {
    "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_TNN": Kernel("nvjet_coopA", 128, 256, 64),
    "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_kernel": Kernel(
        "sm80_xmma", 32, 32, 8
    ),
    "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_nn_align1>(Params)": Kernel(
        "cutlass_80_simt_sgemm_align1", 128, 64, 8
    ),
    "void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_64x64_tn_align1>(Params)": Kernel(
        "cutlass_75_tensorop_bf16_s1688gemm_bf16_align1", 64, 64, 32
    ),
    "void gemv2T_kernel_val<int, int, float>(int)": Kernel("void gemv2T_kernel_val"),
}


@pytest.mark.parametrize(("name", "kernel"), NAMES.items())
def test_a_kernels_name_tells_its_tile(name, kernel):
    assert Kernel.of(["Memset (Device)", name]) == kernel


def test_halves_and_brain_floats_run_on_the_same_kernels():
    half, brain = (f"cutlass_80_tensorop_{t}_s16816gemm_{t}_64x64_32x6_tt_align2" for t in ("f16", "bf16"))
    assert Kernel.of([half]) == Kernel.of([brain])


def test_a_product_that_is_summed_up_afterwards_was_split():
    names = ["cutlass_80_simt_sgemm_64x64_8x5_nn_align1", "void cublasLt::splitKreduce_kernel<32, 16>"]
    assert Kernel.of(names).split and not Kernel.of(names[:1]).split


def _columns(call, kernel):
    """As numbers, not logarithms: tiles, steps, and tiles of the busiest multiprocessor."""
    sides = np.array([[*np.log2(call), 132]], float)
    assert sides.shape[1] == len(SIDES)
    found = on_kernel(sides, np.array([kernel], float))[0]
    return tuple(np.round(2 ** found[[3, 4, 6]]))


def test_the_busiest_multiprocessor_has_the_rounded_up_share_of_the_tiles():
    assert _columns((1, 1024, 2048, 512), (128, 64, 32, 0)) == (16 * 16, 16, 2)
    assert _columns((10, 64, 64, 100), (64, 64, 64, 0)) == (10, 2, 1)


def test_a_tiles_first_side_lies_along_the_columns():
    assert _columns((1, 64, 1024, 64), (256, 64, 64, 0))[0] == 4
    assert _columns((1, 1024, 64, 64), (256, 64, 64, 0))[0] == 16


def test_of_a_kernel_that_is_not_known_nothing_is_said():
    sides = np.array([[0.0, 10, 10, 10, 132]] * 2)
    assert not on_kernel(sides, np.zeros((2, 4))).any()


def test_waves_that_fill_the_device_are_not_ragged():
    full, over = tiled(np.array([[0.0, np.log2(rows), 6, 6, 132] for rows in (32 * 132, 32 * 132 + 1)]))
    assert full[0] == 0.0 and over[0] > 0.0  # two tiles of 32 by 32 at a time
    assert np.isfinite(full).all() and full.shape == over.shape
