from __future__ import annotations

import pytest

from foretrace.cost_models.kernels.kernel_names import TiledKernel, convolution_kernel, gemm_kernel

GEMM_NAMES = {
    "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_TNN": TiledKernel("nvjet_coopA", 128, 256, 64),
    "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_kernel": TiledKernel(
        "sm80_xmma", 32, 32, 8
    ),
    "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_nn_align1>(Params)": TiledKernel(
        "cutlass_80_simt_sgemm_align1", 128, 64, 8
    ),
    "void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_64x64_tn_align1>(Params)": TiledKernel(
        "cutlass_75_tensorop_bf16_s1688gemm_bf16_align1", 64, 64, 32
    ),
    "void gemv2T_kernel_val<int, int, float>(int)": TiledKernel("void gemv2T_kernel_val"),
}


@pytest.mark.parametrize(("name", "kernel"), GEMM_NAMES.items())
def test_a_kernels_name_tells_its_tile(name, kernel):
    assert gemm_kernel(["Memset (Device)", name]) == kernel


def test_halves_and_brain_floats_run_on_the_same_gemm_kernels():
    half, brain = (f"cutlass_80_tensorop_{t}_s16816gemm_{t}_64x64_32x6_tt_align2" for t in ("f16", "bf16"))
    assert gemm_kernel([half]) == gemm_kernel([brain])


def test_a_gemm_that_is_reduced_afterwards_was_split():
    names = ["cutlass_80_simt_sgemm_64x64_8x5_nn_align1", "void cublasLt::splitKreduce_kernel<32, 16>"]
    assert gemm_kernel(names).split and not gemm_kernel(names[:1]).split


XMMA = "sm90_xmma_{}_implicit_gemm_{}_nhwckrsc_nhwc_tilesize128x64x32_warpgroupsize1x1x1_g1_execute_segment_k_{}_kernel"
CUDNN = "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_{}_s16816fprop_optimized_{}_256x64_32x4_nhwc_align8>(Params)"
MANGLED = "_ZN17cutlass__5x_cudnn6KernelINS_4gemm9GemmShapeILi64ELi32ELi16EEENS_12ImplicitGemm9transformE"
CONVOLUTION_NAMES = {
    XMMA.format("fprop", "f32f32_tf32f32_f32", "off"): TiledKernel(
        "sm90_xmma_fprop_implicit_gemm_nhwckrsc_nhwc_segment_k_off", 64, 128, 32
    ),
    XMMA.format("wgrad", "bf16bf16_bf16f32_f32", "on"): TiledKernel(
        "sm90_xmma_wgrad_implicit_gemm_nhwckrsc_nhwc_segment_k_on", 64, 128, 32
    ),
    MANGLED: TiledKernel("_ZN17cutlass", 32, 64, 16),
    "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_64x128_32x6_nt_align4>(Params)": TiledKernel(
        "cutlass_80_tensorop_s1688gemm_align4_nt", 64, 128, 32
    ),
    "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_TNN": TiledKernel("nvjet_coopA", 128, 256, 64),
    "void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel<3, float, int>(Packed)": TiledKernel(
        "void at::native::conv_depthwise2d_forward_kernel<3, , int>"
    ),
}


@pytest.mark.parametrize(("name", "kernel"), CONVOLUTION_NAMES.items())
def test_a_name_tells_the_maker_and_the_tile_but_no_dtype(name, kernel):
    assert convolution_kernel(["Memset (Device)", name]) == kernel


def test_halves_and_brain_floats_run_on_the_same_kernels():
    assert convolution_kernel([CUDNN.format("f16", "f16")]) == convolution_kernel([CUDNN.format("bf16", "bf16")])


def test_what_runs_around_a_kernel_has_letters():
    to_last, to_first = "void cudnn::nchwToNhwcKernel<float>", "void cudnn::nhwcToNchwKernel<float>"
    name = XMMA.format("dgrad", "f32f32_tf32f32_f32", "off")
    assert convolution_kernel([to_last, to_last, name, to_first]) == convolution_kernel([name])._replace(around="<>")
    assert convolution_kernel([name, name]).around == "2"
    assert (
        convolution_kernel(["nvjet_sm90_tst_64x64_64x4_1x1_v_bz_TNT", "void reduce_wgrad_nchw_helper<float>"]).around
        == "r"
    )


def test_a_call_of_helpers_alone_is_named_after_the_first():
    assert convolution_kernel(["void at::native::vectorized_elementwise_kernel<4>(int)"]).maker.endswith(
        "elementwise_kernel<4>"
    )
