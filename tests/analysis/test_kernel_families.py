"""Kernel names, of NVIDIA's and AMD's libraries, and what they are."""

import pytest

from foretrace.analysis.breakdown import KERNEL_GROUPS, kernel_family

KERNELS = {
    "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn": "matrix product",
    "nvjet_sm90_tst_192x192_64x3_1x2_h_bz_coopB_splitK_NTN": "matrix product",
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_64x3_tn_align2>": "matrix product",
    "Cijk_Alik_Bljk_B_BS_BH_Bias_HA_S_SAV_UserArgs_MT128x224x64": "matrix product",
    "void splitKreduce_kernel<float, float>(cublasSplitKParams<float>)": "matrix product",
    "sm90_xmma_fprop_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x32": "convolution",
    "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128>>": "attention",
    "attn_fwd": "attention",
    "fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float>)": "attention",
    "void split_embedding_codegen_forward_unweighted_kernel<float>": "lookup",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>": "element-wise",
    "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda()::{lambda()#1}>": "copy",
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 2, 128, 1>": "copy",
    "Memcpy DtoH (Device -> Pageable)": "copy",
    "Memset (Device)": "memset",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>": "reduction",
    "void cuApplyLayerNorm<c10::Half, float, c10::Half>": "norm",
    "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float>": "norm",
    "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float>": "softmax",
    "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>>": "optimizer",
    "void cub::DeviceRadixSortOnesweepKernel<cub::DeviceRadixSortPolicy<long>>": "sort/index",
    "void fbgemm_gpu::permute_indices_weights_kernel<false, int>": "other",
    "ncclDevKernel_AllReduce_Sum_f16_RING_LL(ncclDevComm*)": "communication",
    "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)": "communication",
    "triton_poi_fused_add_0": "compiled",
    "triton__0d1d2d3d4de": "compiled",
    "void cutlass::device_kernel<flash::FlashAttnBwd<flash::CollectiveMainloopBwd<2>>>": "attention",
    "void flash::compute_attn_ws<Flash_fwd_kernel_traits<192, cutlass::bfloat16_t>>": "attention",
    "kernel_unified_attention_2d": "attention",
    "void vllm::reshape_and_cache_flash_kernel<__hip_bfloat16>": "copy",
    "void vllm::rotary_embedding_kernel<c10::BFloat16, true>": "element-wise",
    "void (anonymous namespace)::fused_rope_kernel<true, 64l, true>": "element-wise",
    "bmm_MxE4m3_MxE2m1MxE4m3_Fp32_Ab32_Bb32_Cb32_t128x8x256_s5_et128x8": "matrix product",
    "void cutlass::device_kernel<dpsk::grouped_gemm::cuda::fp8_ptp128c::GemmKernel>": "matrix product",
    "void moe::dev::finalize::finalizeKernel<moe::dev::finalize::KernelParams<cutlass::bfloat16_t, 4>>": "other",
    "void moe::dev::routing::routingCustom::routingIndicesDynBlockKernel<SoftmaxPreprocess>": "sort/index",
    "void cuda::per_token_cast_to_fp8_with_channels<__nv_bfloat16, 128>": "element-wise",
    "something_else_entirely": "other",
}


@pytest.mark.parametrize(("name", "expected"), KERNELS.items())
def test_a_kernel_is_known_by_its_name(name: str, expected: str) -> None:
    assert kernel_family(name) == expected
    assert expected in KERNEL_GROUPS


@pytest.mark.parametrize(
    ("kernel", "op", "expected"),
    [
        ("void cudnn::engines_precompiled::nchwToNhwcKernel<float>", "aten::cudnn_convolution", "convolution"),
        ("void cub::DeviceRadixSortOnesweepKernel<long>", "aten::embedding_dense_backward", "lookup"),
        ("void at::native::reduce_kernel<512, 1>", "aten::native_layer_norm_backward", "norm"),
        ("void multi_tensor_apply_kernel", "aten::_foreach_add_", "optimizer"),
        ("void fbgemm_gpu::permute_indices_weights_kernel<false>", "fbgemm::permute_sparse_features", "lookup"),
    ],
)
def test_a_kernel_is_a_part_of_what_its_op_does(kernel: str, op: str, expected: str) -> None:
    assert kernel_family(kernel, op) == expected


@pytest.mark.parametrize("where", ["nn.Module: LlamaAttention_0", "embedding", "step[DECODE bs=16]"])
def test_an_annotation_or_a_module_around_a_kernel_does_not_say_what_it_does(where: str) -> None:
    assert kernel_family("nvjet_sm90_tst_192x192_64x3_1x2_h_bz_coopB_NTN", where) == "matrix product"


def test_a_memset_inside_a_matrix_product_stays_a_memset() -> None:
    assert kernel_family("Memset (Device)", "aten::mm") == "memset"


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("aten::addmm", "matrix product"),
        ("aten::relu_", "element-wise"),
        ("aten::add", "element-wise"),
        ("aten::sum", "reduction"),
        ("aten::max_pool2d_with_indices", "reduction"),
        ("aten::index_put_", "sort/index"),
        ("aten::embedding_bag", "lookup"),
        ("c10d::allreduce_", "communication"),
        ("aten::view", "other"),
    ],
)
def test_without_a_kernel_the_op_says_it(op: str, expected: str) -> None:
    assert kernel_family("", op) == expected
