"""The lines of calls: streams, events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from foretrace.graph import Constant, Graph, Op, OpTable, Tensor
from foretrace.replay.generate.code import code_of
from foretrace.replay.generate.planning import plan_of

MAIN, SIDE, EVENT = Constant("stream", "0"), Constant("stream", "1"), Constant("event", "4")


def tensor(number: int) -> Tensor:
    return Tensor((4,), "float32", "cuda:0", (1,), id=number, storage=number)


def on_two_streams(last_on_side: bool = False) -> Graph:
    """A relu on the main stream, a negation on another one that waits for it, and something that waits for that."""
    return Graph(
        OpTable.of(
            [
                Op("aten::relu", (tensor(0),), outputs=(tensor(1),), overload="default"),
                Op("cuda::event_record", (EVENT, MAIN)),
                Op("cuda::stream_wait_event", (SIDE, EVENT)),
                Op("aten::neg", (tensor(1),), outputs=(tensor(2),), overload="default", stream=1),
                Op("aten::record_stream", (tensor(2), SIDE), overload="default", stream=1),
                Op("cuda::stream_synchronize", (SIDE,), stream=1 if last_on_side else 0),
            ]
        )
    )


def lines(graph: Graph) -> list[str]:
    """The calls of a step, without comments and what they free."""
    body = code_of(plan_of(graph)).step.partition("def other(")[2].partition("def step(")[0]
    found = [line.partition("  #")[0].strip() for line in body.splitlines()[1:]]
    return [line for line in found if line and not line.startswith(("del", "live", "[", "pace"))]


def test_calls_are_made_on_the_stream_they_were_recorded_on() -> None:
    assert lines(on_two_streams()) == [
        "t1 = aten.relu.default(t0)",
        "record_event(4, 0)",
        "wait_event(1, 4)",
        "use_stream(1)",
        "t2 = aten.neg.default(t1)",
        "record_stream(t2, 1)",
        "use_stream(0)",
        "synchronize_stream(1)",
    ]


def test_a_step_ends_on_the_stream_it_began_on() -> None:
    assert lines(on_two_streams(last_on_side=True))[-2:] == ["synchronize_stream(1)", "use_stream(0)"]


def test_where_there_is_one_stream_the_others_are_nothing(loaded: Callable[..., Any]) -> None:
    benchmark = loaded(on_two_streams(), device="cpu")
    assert benchmark.source.failures == [] and benchmark.called == {0, 3, 4}
