"""A step, or the end of one, that was captured as a CUDA graph: one launch, and nothing more for the host to do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from foretrace.cost_models.host.pricing import HostCosts
from foretrace.forecast.flat import Flat
from foretrace.graph import Graph
from foretrace.graph.op import GRAPH_LAUNCH
from foretrace.platform.capture import Capture


def captured_calls(graph: Graph, step: Flat) -> NDArray[np.bool_]:
    """Which dispatcher calls of a step are in a CUDA graph: those after its launch."""
    is_launch = graph.ops.names.matching(GRAPH_LAUNCH.__eq__)
    if not is_launch.any():
        return np.zeros(len(step.rows), bool)
    return np.asarray(step.rows > int(is_launch[graph.ops.name].argmax()))


def launched_at_once(host: HostCosts, inside: NDArray[np.bool_], kernels: int, python_us: float) -> HostCosts:
    """What calls cost the host if some are one CUDA graph of so many kernels.

    Parameters
    ----------
    host
        What each call costs by itself.
    inside
        Whether it is in the graph: the first of them pays for the launch, and the others nothing.
    kernels
        How many the graph launches.
    python_us
        From one call outside to the next: no gradients are cleared, and no module is entered.
    """
    to_launch, nothing = np.where(inside, 0.0, host.to_launch), np.zeros(len(inside))
    to_launch[int(inside.argmax())] = Capture.shipped().launch(kernels)
    return replace(
        host,
        before=np.where(inside, 0.0, python_us),
        to_launch=to_launch,
        launch=np.where(inside, 0.0, host.launch),
        between=np.where(inside, 0.0, host.between),
        after=np.where(inside, 0.0, host.after),
        rested=nothing,
    )
