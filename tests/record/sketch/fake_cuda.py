"""What PyTorch's own C++ code calls for CUDA tensors: fake ones work in a build without CUDA, but for autograd.

It has no cuDNN, and no kernels of attention: for those the source has to be read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from foretrace.graph import Op
from foretrace.record.sketch.sketch import sketch
from foretrace.record.watch.watch import Watch


def called_by_torch(step: Callable[[str], Any]) -> list[Op]:
    """Ops of a function of a device on fake CUDA tensors."""
    with (
        patch.object(torch.cuda, "is_available", lambda: True),
        patch.object(torch.cuda, "is_bf16_supported", lambda *_: True),
        patch.object(torch.cuda, "_lazy_init", lambda: None),
        FakeTensorMode(),
        torch.no_grad(),
        Watch() as watch,
    ):
        step("cuda:0")
    return watch.ops


def called_in_a_sketch(step: Callable[[str], Any]) -> list[Op]:
    """Ops of a function of a device on a pretended GPU."""
    return list(sketch(torch.no_grad()(lambda: step("cuda")), device="cuda").ops)
