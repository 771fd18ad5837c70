"""A kernel family: calls whose kernel times follow the same rules.

A family lives in one file under ``families/``. It names the ops it covers, turns a call into features and a roofline
for the estimators to learn from, and draws the calls that a calibration measures. Fitting, ranges and fallbacks are the
same for all families and live elsewhere.

Families are imported in training images, where a calibration runs: numpy and the standard library only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from foretrace.cost_models.kernels.features import tensors_of
from foretrace.cost_models.kernels.roofline import Work
from foretrace.graph import Indices, Op, Tf32
from foretrace.graph.tables import Floats
from foretrace.platform.device import Device
from foretrace.platform.measurements.cases import Case, Draw

if TYPE_CHECKING:
    from foretrace.cost_models.kernels.kernel_names import TiledKernel

PYTORCH_NAMESPACES = ("aten::", "prims::", "c10d::", "higher_order::")
"""Prefixes of PyTorch's own ops, which are no custom kernels."""
TENSOR_CORE_FAMILIES = ("matrix", "convolutions", "grouped_convolutions", "attention", "decoding", "recurrent")
"""Families whose work is matrix products, on Tensor Cores where the dtype lets them: their arithmetic is what a model's
FLOPs, and so its MFU, are commonly taken to be."""
GEMM_SIZES = ("batch", "m", "n", "k", "processors")
"""The size of a GEMM, the first four as base-2 logarithms, and the number of SMs that share it."""


class CallContext(NamedTuple):
    """The device and settings that the time of a call depends on, apart from its arguments."""

    device: Device
    indices: Indices | None = None
    """Statistics of the call's ids, where it reads or writes rows by id."""
    tf32: bool = False
    """Whether float32 GEMMs and convolutions may use TF32 Tensor Cores."""
    pinned: bool = False
    """Whether host memory is pinned."""


class Description(NamedTuple):
    """A call as numbers: one feature per column of its family, and its roofline."""

    features: Sequence[float]
    work: Work


class Family:
    """Base class of the kernel families.

    A subclass gives `name`, `ops`, `columns`, `share`, `describe` and `case`; the other members have defaults.
    """

    name: ClassVar[str]
    """As in ``calibrate --family``, in the index of a platform and in the names of its files: never changed."""
    ops: ClassVar[tuple[str, ...]]
    columns: ClassVar[tuple[str, ...]]
    """Names of the features, in order. Fitted models store them: a change of the features is a change of these."""
    share: ClassVar[float] = 0.0
    """Share of the measuring time, relative to the other families; 0 where `case` draws nothing."""
    cases_per_shape: ClassVar[int] = 1
    """Consecutive cases of the same shapes: a forward and its backward share what a library plans for the shape."""
    slow_to_plan: ClassVar[bool] = False
    """Whether a library takes long to plan a new shape, as cuDNN does: several processes then plan at once."""
    gemm_sizes: ClassVar[tuple[str, ...]] = ()
    """The columns that hold a call's size as a GEMM, in the order of `GEMM_SIZES`; none where it is no GEMM."""
    min_measurements: ClassVar[int] = 40
    """Measured calls that a fit takes at least."""
    one_kernel: ClassVar[bool] = False
    """Whether a call is itself one kernel of the same name."""
    takes_sparse: ClassVar[bool] = False
    """Whether calls on sparse tensors are covered, whose shapes do not tell their elements."""
    op_codes: ClassVar[dict[str, int]]
    """The position of each op in `ops`: the feature that tells ops apart."""

    def __init_subclass__(cls) -> None:
        cls.op_codes = {name: code for code, name in enumerate(cls.ops)}

    def matches(self, op: Op) -> bool:
        """Whether the family covers a call."""
        if op.name not in self.op_codes or not self.accepts(op):
            return False
        return self.takes_sparse or all(t.layout == "strided" for t in op.tensors)

    def accepts(self, op: Op) -> bool:
        """Whether the family covers a call of one of its ops: by default, if any of its tensors is known."""
        return bool(tensors_of(op))

    def describe(self, op: Op, context: CallContext) -> Description:
        """The features and the roofline of a call.

        It is asked about calls of any trace, with arguments missing or odd, and never raises; at least one tensor is
        there.
        """
        raise NotImplementedError

    def least_work(self, op: Op) -> Work | None:
        """What a call has to do at least, where the roofline that models were fitted with leaves some of it out."""
        return None

    def case(self, draw: Draw) -> Case:
        """A random call to measure, as training steps have them."""
        raise NotImplementedError

    def may_use_tf32(self, settings: Tf32) -> bool:
        """Whether the step's settings let float32 calls of this family use TF32."""
        return False

    def is_guess(self, op: Op) -> bool:
        """Whether the model's answer for a call is a guess, however much of the family was measured."""
        return False

    def proxy(self, op: Op) -> Op | None:
        """A call of another family that takes about as long, for devices on which this one was not measured."""
        return None

    def kernel_traits(self, kernels: Sequence[str]) -> tuple[float, ...]:
        """What the kernel names of a measured call say that helps to predict others; estimators learn to guess it."""
        return ()

    def repeats(self, features: Floats) -> Floats:
        """How often each call, a row of features, goes through the same kernels: once, but where it is a loop."""
        return np.ones(len(features))

    def main_kernel(self, kernels: Sequence[str]) -> TiledKernel | None:
        """The kernel that did the work of a measured call, for families whose library selects among many."""
        return None
