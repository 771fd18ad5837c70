"""Copies between host and device, from pinned and from pageable memory."""

from __future__ import annotations

from foretrace.cost_models.kernels.families.copies import memory_of, within_one_memory
from foretrace.cost_models.kernels.family import CallContext, Description, Family
from foretrace.cost_models.kernels.features import log, tensors_of
from foretrace.cost_models.kernels.roofline import Work
from foretrace.graph import Constant, Op, Tensor
from foretrace.platform.measurements.cases import Case, Draw

COPY, CONVERSION, SCALAR = "aten::copy_", "aten::_to_copy", "aten::_local_scalar_dense"


class Transfers(Family):
    """Host-to-device and device-to-host copies, and reads of a scalar."""

    name = "transfers"
    share = 2
    ops = (COPY, CONVERSION, SCALAR, "aten::_pin_memory")
    columns = ("op", "bytes", "to_device", "pinned", "blocking")

    def accepts(self, op: Op) -> bool:
        """Copies that do not stay in one memory."""
        tensors = tensors_of(op)
        if op.name == SCALAR:
            return bool(tensors) and memory_of(tensors[0]) == "device"
        return bool(tensors) and not within_one_memory(op, tensors)

    def describe(self, op: Op, context: CallContext) -> Description:
        """Bytes, direction, and whether host memory is pinned. The link, not the memory, is the limit.

        Only pinned memory is copied while the host goes on: from pageable memory, non-blocking calls take as long.
        """
        first = tensors_of(op)[0]
        target = op.kwargs.get("device")
        if op.name == COPY:
            to_device = memory_of(first) == "device"
        else:
            to_device = isinstance(target, Constant) and target.value != "cpu"
        name = COPY if op.name == CONVERSION else op.name  # which calls it
        features = [self.op_codes[name], log(first.nbytes), to_device, context.pinned, not context.pinned]
        return Description(features, Work(bytes=first.nbytes))

    def least_work(self, op: Op) -> Work:
        """The bytes go over the link to the host, not only through memory."""
        return Work(link_bytes=tensors_of(op)[0].nbytes)

    def case(self, draw: Draw) -> Case:
        """A copy to or from the device."""
        dtype = draw.weighted({"float32": 4, "int64": 3, "bfloat16": 2})
        if draw.chance(0.1):
            return Case(Op(SCALAR, (Tensor((), dtype),), overload="default"))
        shape = (draw.whole(1, min(draw.most, 2**24)),)
        here, there = Tensor(shape, dtype), Tensor(shape, dtype, device="cpu")
        pinned = draw.kind == "cuda" and draw.chance(0.5)
        args = (here, there, pinned) if draw.chance(0.6) else (there, here, pinned)
        return Case(Op(COPY, args, overload="default"), pinned=pinned)
