from __future__ import annotations

from foretrace.report.strips import COLUMNS, WAITING, Piece, strips
from tests.forecast.builders import AUTOGRAD, Call, launch, rank, sync


def test_a_stream_shows_the_families_of_its_kernels_and_its_pauses():
    graph = rank(Call("aten::mm", 0, 10), launch(1, 2, (0, 50)), Call("aten::add", 20, 30), launch(21, 22, (75, 100)))
    thread, stream = strips(graph, end=100.0)
    assert stream.pieces == [
        Piece(0, COLUMNS // 2, "matrix product"),
        Piece(3 * COLUMNS // 4, COLUMNS // 4, "element-wise"),
    ]
    assert thread.name == "thread 1" and thread.pieces[0].what == "forward"


def test_threads_are_seen_to_take_turns():
    graph = rank(Call("aten::mm", 0, 20), Call("aten::mm", 30, 60, thread=AUTOGRAD), Call("aten::add_", 75, 100))
    main, autograd = strips(graph, end=100.0)
    assert [piece.first * 100 / COLUMNS for piece in main.pieces] == [0, 75]
    assert [piece.columns * 100 / COLUMNS for piece in autograd.pieces] == [30]


def test_a_thread_that_waits_for_the_device_is_seen_to():
    graph = rank(Call("aten::item", 0, 100), sync(25, 75))
    (thread,) = strips(graph, end=100.0)
    assert [(piece.what, piece.columns) for piece in thread.pieces] == [
        ("forward", COLUMNS // 4), (WAITING, COLUMNS // 2), ("forward", COLUMNS // 4)
    ]  # fmt: skip
