"""Names as a reader can bear them: kernels without their templates, nothing that could steer a terminal."""

from __future__ import annotations

import re

_KERNEL = re.compile(r"(?:void )?([\w:~]+)(<.*>)?(\(.*\))?$")
_PLUMBING = re.compile(r"\(anonymous namespace\)::|\b(?:at|native|cuda|detail|internal|std|c10)::")
_TELLING = re.compile(
    r"\b(?!(?:Binary|AUnary|BUnary)Functor\b)(?:\w*Functor\w*|\w+_kernel_cuda|\w+_kernel_impl|\w+_kernel)\b"
)
"""What tells one template from another: the function it applies, not the adapters around that."""

MOST = 2000
"""Characters of a name that are looked at: no honest kernel has more, and no line shows them."""


def printable(text: str) -> str:
    r"""The text on one line, with every character that is no sign or space written out.

    >>> print(printable("a\x1b[31mb\nc"))
    a\x1b[31mb\nc
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def short(name: str) -> str:
    """A kernel's name without return type, namespaces, arguments and templates; other names as they are.

    Of the template stays what tells one kernel from another: PyTorch has one elementwise kernel for all functions.

    >>> short("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, float>(int)")
    'vectorized_elementwise_kernel<CUDAFunctor_add>'
    >>> short("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_64x64>(cutlass_80_tensorop_s1688gemm_64x64::Params)")
    'cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_64x64>'
    >>> short("aten::addmm"), short("ampere_sgemm_128x64_tn")
    ('aten::addmm', 'ampere_sgemm_128x64_tn')
    """
    name = printable(name[:MOST])
    kernel = _KERNEL.match(_PLUMBING.sub("", name))
    if not kernel or not (kernel[2] or kernel[3]):
        return name
    if not kernel[2]:
        return kernel[1]
    told = _TELLING.search(kernel[2])
    argument = told[0] if told else re.split(r"[<,(>]", kernel[2][1:])[0].strip()
    return f"{kernel[1]}<{argument}>" if argument and not argument.isdecimal() else kernel[1]
