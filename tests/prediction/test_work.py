"""Pieces of device work."""

import numpy as np

from foretrace.analysis.dispatched import dispatched_calls
from foretrace.prediction.device_work import measured_work, merge_work
from tests.analysis.builders import recorded


def test_measured_kernels_keep_their_call_launch_and_time() -> None:
    work = measured_work(dispatched_calls(recorded()).calls)
    assert work.call.tolist() == [0, 0, 1]
    assert work.launch.tolist() == [0, 1, 2]
    assert work.typical.tolist() == [20.0, 4.0, 3.0]
    assert work.launches(2).tolist() == [2, 1]
    assert work.coverage() == {"measured": 1.0, "model": 0.0, "extrapolated": 0.0, "fallback": 0.0}


def test_kernels_of_one_launch_share_it() -> None:
    graph = recorded()
    graph.kernels.call = np.array([0, 0, 2], np.int32)
    work = measured_work(dispatched_calls(graph).calls)
    assert work.launch.tolist() == [0, 0, 1] and work.launches(2).tolist() == [1, 1]


def test_some_pieces_keep_their_numbers() -> None:
    work = measured_work(dispatched_calls(recorded()).calls).rows(np.array([False, True, True]))
    assert work.launch.tolist() == [1, 2] and work.typical.tolist() == [4.0, 3.0] and len(work.name) == 2


def test_what_is_put_together_keeps_its_order_and_its_launches() -> None:
    work = measured_work(dispatched_calls(recorded()).calls)
    graph = work.rows(np.array([0, 1]))
    graph.launch[:] = 0  # two kernels of one CUDA graph
    both = merge_work(work.rows(np.array([2])), graph)
    assert both.call.tolist() == [0, 0, 1] and both.launch.tolist() == [0, 0, 1]
