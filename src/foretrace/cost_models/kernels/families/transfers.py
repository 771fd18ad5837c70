"""Copies between host and device, from pinned memory and from memory that must be staged."""

from __future__ import annotations

from foretrace.cost_models.kernels.families.copies import kind_of, stays
from foretrace.cost_models.kernels.family import Described, Facts, Family, Work
from foretrace.cost_models.kernels.features import flag, log, tensors_of
from foretrace.graph import Constant, Op

SCALAR = "aten::_local_scalar_dense"


class Transfers(Family):
    """What crosses the bus."""

    name = "transfers"
    ops = ("aten::copy_", "aten::_to_copy", SCALAR, "aten::_pin_memory")
    columns = ("op", "bytes", "to_device", "pinned", "blocking")

    def takes(self, op: Op) -> bool:
        """What does not stay on one side."""
        tensors = tensors_of(op)
        if op.name == SCALAR:
            return bool(tensors) and kind_of(tensors[0]) == "device"
        return bool(tensors) and not stays(op, tensors)

    def describe(self, op: Op, facts: Facts) -> Described:
        """Bytes, direction, and how the host's memory is held. The link, not the memory, is the limit."""
        first = tensors_of(op)[0]
        target = op.kwargs.get("device")
        if op.name == "aten::copy_":
            to_device = kind_of(first) == "device"
        else:
            to_device = isinstance(target, Constant) and target.value != "cpu"
        blocking = not flag(op, 2, "non_blocking")
        features = [self.ops.index(op.name), log(first.nbytes), to_device, facts.pinned, blocking]
        return Described(features, Work(bytes=first.nbytes))
