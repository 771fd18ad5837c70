"""A forecast held against a recording."""

from typing import Any

import pytest

from foretrace.analysis.compare import check_prediction
from foretrace.graph import ForetraceError, Graph, Timings
from foretrace.prediction.predict import predict_on_platform
from tests.analysis.builders import Call, launch, rank


@pytest.fixture
def recording() -> Graph:
    graph = rank(
        Call("aten::mm", 0, 20), launch(2, 6, (10, 22)), Call("aten::mm", 30, 50), launch(32, 36, (40, 52)),
        Call("aten::relu", 60, 70), launch(62, 66, (68, 78)),
    )  # fmt: skip
    graph.unprofiled = Timings(synced_ms=(0.03, 0.04, 0.02), back_to_back_ms=(0.025,), peak_memory_bytes=4096)
    graph.profiling_overhead = 2.0
    return graph


def test_predicted_stands_beside_measured(recording: Graph, platform: Any) -> None:
    found = check_prediction(predict_on_platform(recording, platform, "model"), recording)
    assert found.step_ms[1] == 0.03
    assert found.step_ms_back_to_back is not None and found.step_ms_back_to_back[1] == 0.025
    assert found.device_active_ms == (pytest.approx(0.020), pytest.approx(0.034))
    assert found.kernels == (2, 3)
    assert found.inside == (found.range_ms[0] <= 0.03 <= found.range_ms[1])


def test_the_largest_miss_comes_first_and_profiled_host_time_is_taken_down(recording: Graph, platform: Any) -> None:
    found = check_prediction(predict_on_platform(recording, platform, "model"), recording)
    sizes = [abs(row.miss_ms) for row in found.by_op]
    assert sizes == sorted(sizes, reverse=True)
    product = next(row for row in found.by_op if row.name == "aten::mm")
    assert product.device_ms == (pytest.approx(0.020), pytest.approx(0.024))
    assert product.host_ms[1] == pytest.approx(0.040 / 2.0)
    assert product.count == (2, 2)


def test_what_processors_do_is_counted_once(recording: Graph, platform: Any) -> None:
    forecast = predict_on_platform(recording, platform, "model")
    bare = rank(Call("aten::mm", 0, 20), Call("aten::mm", 30, 50))
    bare.unprofiled = recording.unprofiled
    product = next(row for row in check_prediction(forecast, bare).by_op if row.name == "aten::mm")
    assert product.device_ms == (0.0, 0.0)
    assert product.miss_ms == pytest.approx(product.host_ms[0] - 0.040)


def test_a_trace_without_plain_steps_has_nothing_to_check_against(recording: Graph, platform: Any) -> None:
    forecast = predict_on_platform(recording, platform, "model")
    recording.unprofiled = Timings()
    with pytest.raises(ForetraceError, match="no unprofiled steps"):
        check_prediction(forecast, recording)


def test_its_words_are_plain_data(recording: Graph, platform: Any) -> None:
    words = check_prediction(predict_on_platform(recording, platform, "model"), recording).to_dict()
    assert words["step_ms"][1] == 0.03 and isinstance(words["by_op"], list)
