"""The names of what a convolution ran tell its kernel, and what ran around it."""

import pytest

from foretrace.cost_models.kernels.kernel_names import Kernel, engine

XMMA = "sm90_xmma_{}_implicit_gemm_{}_nhwckrsc_nhwc_tilesize128x64x32_warpgroupsize1x1x1_g1_execute_segment_k_{}_kernel"
CUDNN = "void cutlass__5x_cudnn::Kernel<cutlass_tensorop_{}_s16816fprop_optimized_{}_256x64_32x4_nhwc_align8>(Params)"
MANGLED = "_ZN17cutlass__5x_cudnn6KernelINS_4gemm9GemmShapeILi64ELi32ELi16EEENS_12ImplicitGemm9transformE"
NAMES = {
    XMMA.format("fprop", "f32f32_tf32f32_f32", "off"): Kernel(
        "sm90_xmma_fprop_implicit_gemm_nhwckrsc_nhwc_segment_k_off", 64, 128, 32
    ),
    XMMA.format("wgrad", "bf16bf16_bf16f32_f32", "on"): Kernel(
        "sm90_xmma_wgrad_implicit_gemm_nhwckrsc_nhwc_segment_k_on", 64, 128, 32
    ),
    MANGLED: Kernel("_ZN17cutlass", 32, 64, 16),
    "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_64x128_32x6_nt_align4>(Params)": Kernel(
        "cutlass_80_tensorop_s1688gemm_align4_nt", 64, 128, 32
    ),
    "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_TNN": Kernel("nvjet_coopA", 128, 256, 64),
    "void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel<3, float, int>(Packed)": Kernel(
        "void at::native::conv_depthwise2d_forward_kernel<3, , int>"
    ),
}


@pytest.mark.parametrize(("name", "kernel"), NAMES.items())
def test_a_name_tells_the_maker_and_the_tile_but_no_dtype(name, kernel):
    assert engine(["Memset (Device)", name]) == kernel


def test_halves_and_brain_floats_run_on_the_same_kernels():
    assert engine([CUDNN.format("f16", "f16")]) == engine([CUDNN.format("bf16", "bf16")])


def test_what_runs_around_a_kernel_has_letters():
    to_last, to_first = "void cudnn::nchwToNhwcKernel<float>", "void cudnn::nhwcToNchwKernel<float>"
    name = XMMA.format("dgrad", "f32f32_tf32f32_f32", "off")
    assert engine([to_last, to_last, name, to_first]) == engine([name])._replace(around="<>")
    assert engine([name, name]).around == "2"
    assert engine(["nvjet_sm90_tst_64x64_64x4_1x1_v_bz_TNT", "void reduce_wgrad_nchw_helper<float>"]).around == "r"


def test_a_call_of_helpers_alone_is_named_after_the_first():
    assert engine(["void at::native::vectorized_elementwise_kernel<4>(int)"]).maker.endswith("elementwise_kernel<4>")
