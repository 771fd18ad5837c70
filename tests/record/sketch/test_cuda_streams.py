from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.distributed.fsdp import fully_shard

from foretrace.graph import Constant
from foretrace.record.sketch.sketch import sketch
from foretrace.record.watch.context import streams_are_pretended

pytestmark = pytest.mark.skipif(bool(torch.version.cuda), reason="a build with CUDA has streams of its own")


def test_a_step_on_two_streams_says_who_waits_for_whom() -> None:
    def step() -> None:
        given = torch.ones(4, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            doubled = given * 2
            done = torch.cuda.Event()
            done.record()
        torch.cuda.current_stream().wait_event(done)
        doubled.sum()

    graph = sketch(step, device="cuda")
    steered = [(op.name, op.stream, [a.value for a in op.args if isinstance(a, Constant)]) for op in graph.ops]
    assert [(name, stream) for name, stream, _ in steered if name.startswith("aten")] == [
        ("aten::ones", 0),
        ("aten::mul", 1),
        ("aten::sum", 0),
    ]
    assert [(name, said) for name, _, said in steered if name.startswith("cuda")] == [
        ("cuda::event_record", ["0", "0"]),
        ("cuda::stream_wait_event", ["1", "0"]),
        ("cuda::event_record", ["1", "1"]),
        ("cuda::stream_wait_event", ["0", "1"]),
    ]


def sharded_step() -> Callable[[], None]:
    with torch.device("cuda"):
        model = fully_shard(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(torch.randn(8, 64, device="cuda")).sum()
        loss.backward()
        optimizer.step()

    return step


def test_fsdp2_shards_on_the_gpu_and_on_streams_of_its_own() -> None:
    graph = sketch(sharded_step, device="cuda", world=4)
    assert {t.device for op in graph.ops for t in (*op.tensors, *op.produced)} == {"cuda:0"}
    assert {c.kind: graph.ops[c.op].stream for c in graph.collectives} == {"all_gather": 2, "reduce_scatter": 3}
    product = next(op for op in graph.ops if op.name == "aten::addmm")
    assert {t.dtype for t in product.tensors} == {"bfloat16"}  # gathered weights are cast as the GPU's are


def test_streams_are_as_they_were_after_a_sketch() -> None:
    before = torch.cuda.Stream, torch.cuda.Event, torch.cuda.stream
    sketch(sharded_step, device="cuda", world=4)
    assert (torch.cuda.Stream, torch.cuda.Event, torch.cuda.stream) == before
    assert not streams_are_pretended()
