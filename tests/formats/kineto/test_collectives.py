"""Collectives in profiler traces."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from foretrace.formats.kineto import read_kineto
from foretrace.graph import Collective, Graph
from tests.traces import Trace, all_reduce, training_step


def read(trace: Trace, folder: Path) -> Graph:
    return read_kineto(trace.write(folder / "trace.json"))


def one(trace: Trace, folder: Path) -> Collective:
    (collective,) = read(trace, folder).collectives
    return collective


def collective_args(name: str, sent: int, received: int, **more: Any) -> dict[str, Any]:
    return {"Collective name": name, "In msg nelems": sent, "Out msg nelems": received, "dtype": "BFloat16", **more}


def shapes(dims: list[Any], types: list[str]) -> dict[str, Any]:
    return {"Input Dims": dims, "Input type": types}


def test_a_collective_has_kind_size_group_and_op(tmp_path: Path) -> None:
    graph = read(training_step(rank=0, world=2), tmp_path)
    (collective,) = graph.collectives
    assert (collective.kind, collective.nbytes, collective.dtype) == ("all_reduce", 4096, "float32")
    assert (collective.group, collective.ranks) == ("0", (0, 1))
    assert graph.kernels.names[graph.kernels.name[collective.kernel]].startswith("ncclDevKernel_AllReduce")
    assert graph.ops[collective.op].name == "nccl:all_reduce"


@pytest.mark.parametrize(
    ("name", "sent", "received", "kind", "elements"),
    [
        ("_allgather_base", 10, 80, "all_gather", 80),
        ("_reduce_scatter_base", 80, 10, "reduce_scatter", 80),
        ("all_to_allv", 64, 48, "all_to_all", 64),
        ("broadcast", 5, 5, "broadcast", 5),
        ("send", 7, 7, "send", 7),
        ("recv", 0, 9, "recv", 9),
    ],
)
def test_sizes_are_those_of_the_whole_buffer(
    tmp_path: Path, name: str, sent: int, received: int, kind: str, elements: int
) -> None:
    trace = Trace(0, 8)
    with trace.op("record_param_comms", **collective_args(name, sent, received)):
        trace.launch("ncclDevKernel_Generic")
    collective = one(trace, tmp_path)
    assert (collective.kind, collective.nbytes) == (kind, 2 * elements)


def test_what_the_kernel_itself_says_comes_first(tmp_path: Path) -> None:
    trace = Trace(0, 8)
    with trace.op("nccl:coalesced", "user_annotation"):
        trace.launch(
            "ncclDevKernel_AllGather_RING_LL",
            **collective_args("_allgather_base", 4, 32, **{"Process Group Name": "7"}),
        )
    collective = one(trace, tmp_path)
    assert (collective.kind, collective.nbytes, collective.group) == ("all_gather", 64, "7")


@pytest.mark.parametrize(
    ("call", "annotation", "kind", "nbytes"),
    [
        (shapes([[[4, 8]], []], ["TensorList", ""]), shapes([[4, 8]], ["c10::Half"]), "all_reduce", 64),
        (shapes([[80], [10], []], ["float", "float", ""]), shapes([[10]], ["float"]), "all_gather", 320),
        (shapes([[], [[10]]], ["", "TensorList"]), shapes([[10]], ["float"]), "all_gather", 320),
        (shapes([[10], [80]], ["float", "float"]), shapes([[80]], ["float"]), "reduce_scatter", 320),
        (shapes([[48], [64]], ["float", "float"]), {}, "all_to_all", 256),
        (shapes([[1 << 61, 16]], ["float"]), {}, "all_reduce", 0),  # damaged
    ],
)
def test_old_traces_tell_sizes_by_shapes(
    tmp_path: Path, call: dict[str, Any], annotation: dict[str, Any], kind: str, nbytes: int
) -> None:
    trace = Trace(0, 8)
    plain = kind.replace("_", "")
    with trace.op(f"c10d::{plain}_", **call), trace.op(f"nccl:{kind}", "user_annotation", **annotation):
        trace.launch("ncclKernel_Something_RING_LL_Sum_half")
    collective = one(trace, tmp_path)
    assert (collective.kind, collective.nbytes) == (kind, nbytes)


@pytest.mark.parametrize(("annotation", "kind"), [("nccl:send 0->1", "send"), ("nccl:recv 0<-1", "recv")])
def test_the_kernel_that_sends_and_receives_is_what_its_op_says(tmp_path: Path, annotation: str, kind: str) -> None:
    trace = Trace(0, 2)
    with trace.op(annotation, "user_annotation"):
        trace.launch("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)")
    assert (one(trace, tmp_path).kind, one(trace, tmp_path).peer) == (kind, 1)


def test_a_kernel_that_nothing_tells_of_goes_by_its_name(tmp_path: Path) -> None:
    trace = Trace(0, 2)
    trace.launch("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)")
    trace.launch("ncclKernel_ReduceScatter_RING_LL_Sum_half")
    trace.launch("rcclDevKernel_AllGather")
    graph = read(trace, tmp_path)
    assert [c.kind for c in graph.collectives] == ["all_to_all", "reduce_scatter", "all_gather"]
    assert [c.nbytes for c in graph.collectives] == [0, 0, 0]


def test_gloo_runs_on_the_host(tmp_path: Path) -> None:
    trace = Trace(0, 2)
    with trace.op("c10d::allreduce_", **shapes([[[100]]], ["TensorList"])):
        pass
    with trace.op("gloo:all_reduce", "user_annotation", tid=300, **shapes([[100]], ["float"])):
        pass
    graph = read(trace, tmp_path)
    (collective,) = graph.collectives
    assert (collective.kind, collective.nbytes, collective.kernel) == ("all_reduce", 400, -1)
    assert graph.ops[collective.op].name == "gloo:all_reduce"


def test_calls_stand_for_collectives_where_the_host_left_no_other_mark(tmp_path: Path) -> None:
    trace = Trace(0, 2)
    with trace.op("c10d::allreduce_", **shapes([[100]], ["float"])):
        pass
    assert one(trace, tmp_path).nbytes == 400


def test_a_call_whose_kernel_communicates_is_counted_once(tmp_path: Path) -> None:
    trace = Trace(0, 2)
    with trace.op("c10d::allreduce_", **shapes([[100]], ["float"])):
        trace.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL")
    assert one(trace, tmp_path).kernel == 0


def test_calls_of_nccl_without_kernels_are_no_host_collectives(tmp_path: Path) -> None:
    trace = Trace(0, 2)
    all_reduce(trace, 100, 2, ends=trace.now + 50)
    trace.events = [event for event in trace.events if event["cat"] not in ("kernel", "cuda_runtime")]
    assert read(trace, tmp_path).collectives == []


def test_the_eight_rank_dlrm_has_five_all_to_alls_and_three_all_reduces(shared: Path) -> None:
    for rank in range(8):
        graph = read_kineto(shared / f"public/dlrm_8xV100/rank{rank}.kineto.json.gz")
        assert Counter(c.kind for c in graph.collectives) == {"all_to_all": 5, "all_reduce": 3}
        assert all(c.nbytes for c in graph.collectives)


@pytest.mark.parametrize(("name", "end"), [("send", "Dst Rank"), ("recv", "Src Rank")])
@pytest.mark.parametrize("rank", [5, "5"])
def test_the_other_end_of_a_send_is_what_its_kernel_names(tmp_path: Path, name: str, end: str, rank: int | str) -> None:
    trace = Trace(0, 8)
    with trace.op("record_param_comms"):
        trace.launch("ncclDevKernel_SendRecv", **collective_args(name, 4, 4, **{end: rank}))
    assert (one(trace, tmp_path).kind, one(trace, tmp_path).peer) == (name, 5)
