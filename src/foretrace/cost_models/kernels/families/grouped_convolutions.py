"""Grouped and dilated convolutions: a library has other kernels for them than for the plain ones."""

from __future__ import annotations

from collections.abc import Sequence

from foretrace.cost_models.kernels.families.convolutions import (
    Convolutions,
    Layer,
    conv_case,
    draw_channels,
    image_side,
    is_variant,
)
from foretrace.cost_models.kernels.kernel_names import TiledKernel
from foretrace.graph import Op
from foretrace.platform.measurements.cases import Case, Draw

GROUP_WIDTHS = (4, 8, 16, 24, 32, 48, 64, 84, 112, 120, 168, 232)
"""Channels of a group, as ResNeXts and RegNets have them."""


class GroupedConvolutions(Convolutions):
    """Convolutions whose channels are split into groups of several, or whose window has holes."""

    name = "grouped_convolutions"
    share = 4
    gemm_sizes = ()

    def accepts(self, op: Op) -> bool:
        """Several groups of several channels, or a dilated window."""
        return self.has_shapes(op) and is_variant(op)

    def main_kernel(self, kernels: Sequence[str]) -> TiledKernel | None:
        """None: too few are measured to learn which kernel is selected."""
        return None

    def case(self, draw: Draw) -> Case:
        """A layer of a RegNet, a ResNeXt or a segmentation net, forward or backward."""
        return conv_case(draw, _dilated(draw) if draw.chance(0.3) else _grouped(draw))


def _grouped(draw: Draw) -> Layer:
    """ResNeXt's many narrow groups, RegNet's few wide ones."""
    groups = draw.one((2, 3, 4, 8, 11, 16, 32, 64))
    width = draw.one([each for each in GROUP_WIDTHS if each * groups <= max(4 * groups, min(4096, draw.most // 64))])
    return Layer(groups * width, groups * width, 3, draw.one((1, 1, 2)), 1, groups, image_side(draw), biased=False)


def _dilated(draw: Draw) -> Layer:
    """A window with holes: segmentation heads, and the last stages of their backbones."""
    dilation = draw.one((2, 2, 4, 6, 12, 18, 24))
    inner, outer = (
        draw_channels(draw, 64, min(2048, draw.most // 64)),
        draw_channels(draw, 64, min(512, draw.most // 256)),
    )
    return Layer(inner, outer, 3, 1, dilation, 1, draw.whole(16, 96), biased=False, dilation=dilation)
