"""Lazy modules (``torch.nn.LazyLinear``) on fake tensors, where PyTorch can't make their uninitialized weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter


class FakeWeight(UninitializedParameter, FakeTensor):
    """A fake weight whose shape its module learns from its first input; then it is a fake tensor."""

    cls_to_become = FakeTensor
    shape, __torch_function__ = torch.Tensor.shape, FakeTensor.__torch_function__  # fake kernels ask


class FakeBuffer(UninitializedBuffer, FakeTensor):
    """The same of a buffer."""

    cls_to_become = FakeTensor
    shape, __torch_function__ = torch.Tensor.shape, FakeTensor.__torch_function__  # fake kernels ask


@contextmanager
def lazy_modules() -> Iterator[None]:
    """Let lazy modules be made and initialized on fake tensors."""

    def made(kind: type[FakeTensor], requires_grad: bool, device: Any, dtype: Any) -> Any:
        fake: Any = torch.empty(0, device=device, dtype=dtype).requires_grad_(requires_grad)
        fake.__class__ = kind
        return fake

    def parameter(kind: Any, requires_grad: bool = True, device: Any = None, dtype: Any = None) -> Any:
        fake = made(FakeWeight, requires_grad, device, dtype)
        fake._is_param = True
        return fake

    def buffer(
        kind: Any, requires_grad: bool = False, device: Any = None, dtype: Any = None, persistent: bool = True
    ) -> Any:
        fake = made(FakeBuffer, requires_grad, device, dtype)
        fake.persistent, fake._is_buffer = persistent, True
        return fake

    with (
        patch.object(UninitializedParameter, "__new__", staticmethod(parameter)),
        patch.object(UninitializedBuffer, "__new__", staticmethod(buffer)),
    ):
        yield
