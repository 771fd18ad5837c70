from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretrace.report.formatting import printable, short_name


@given(st.text())
def test_whatever_comes_in_one_printable_line_comes_out(text):
    assert printable(text).isprintable()
    assert short_name(text).isprintable()


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, float, float, "
            "at::native::binary_internal::MulFunctor<float> >, std::array<char*, 3ul> >(int, ...)",
            "vectorized_elementwise_kernel<MulFunctor>",
        ),
        (
            "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<"
            "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::"
            "{lambda()#7}::operator()() const::{lambda(float)#1}>(at::TensorIteratorBase&)::{lambda(int)#1}>(int)",
            "elementwise_kernel<direct_copy_kernel_cuda>",
        ),
        (
            "void (anonymous namespace)::softmax_warp_forward<float, float, float, 8, false, false>(float*, int)",
            "softmax_warp_forward<float>",
        ),
        ("ncclDevKernel_AllReduce_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "ncclDevKernel_AllReduce_RING_LL"),
        ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pageable -> Device)"),
        ("autograd::engine::evaluate_function: AddmmBackward0", "autograd::engine::evaluate_function: AddmmBackward0"),
        ("void", "void"),
    ],
)
def test_kernel_names_keep_what_tells_them_apart(name, shown):
    assert short_name(name) == shown
