"""What annotations and Python functions say of host time."""

from contextlib import nullcontext
from pathlib import Path

import pytest

from foretrace.analysis.activities import meaning
from foretrace.analysis.measure import measure_step
from foretrace.formats.kineto import read_kineto
from tests.traces import Trace


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (
            "data loading",
            [
                "data_loading", "Data loading", "fetch data", "next(data_iter)", "next(self.train_loader)", "load_data",
                "train_data_loading", "get_batch", "prefetch batch",
            ],
        ),
        (
            "checkpoint",
            [
                "checkpoint: save_model", "[pl][profile][Callback]ModelCheckpoint{'monitor': None}.on_train_batch_end",
                "save checkpoint", "save_checkpoint", "checkpoint_save", "Saving model", "## checkpoint ##",
            ],
        ),
        ("sleep", ["time.sleep", "time.sleep(0.1)", "sleep", "<built-in function sleep>"]),
    ],
)  # fmt: skip
def test_names_that_say_what_the_host_does_are_recognised(kind: str, names: list[str]) -> None:
    assert {meaning(name) for name in names} == {kind}


def test_names_of_the_model_and_of_activation_checkpointing_say_nothing() -> None:
    names = [
        "checkpoint_forward", "torch/utils/checkpoint.py(243): backward", "checkpoint_wrapper: forward",
        "nn.Module: DataEmbedding_0", "[pl][profile]Strategy.batch_to_device", "aten::_nested_get_values",
        "sleepy_layer", "data_parallel: forward", "DistributedDataParallel.forward", "metadata_iter",
        "next_token_prediction", "nn.Module: SampleNorm_0",
    ]  # fmt: skip
    assert [name for name in names if meaning(name)] == []


def idle_for(trace: Trace, folder: Path) -> list[tuple[str, str]]:
    """What the device idles for longest, of causes that have a name."""
    rows = measure_step(read_kineto(trace.write(folder / "trace.json"))).idle
    return [(row.cause, row.name) for row in rows if row.ms > 0.5]


@pytest.mark.parametrize("around", ["", "train", "train_loop(get_batch)", "save_checkpoint_every", "dataloader epoch"])
def test_an_annotation_around_the_loop_hides_no_cause_inside(around: str, tmp_path: Path) -> None:
    trace = Trace()
    with trace.op(around, "user_annotation") if around else nullcontext():
        for number in range(2):
            with trace.step(number):
                with trace.op("enumerate(DataLoader)#_Iter.__next__", "user_annotation"):
                    trace.now += 5_000
                with trace.op("forward", "user_annotation"), trace.op("aten::mm"):
                    trace.launch("gemm", us=300)
                trace.call("cudaDeviceSynchronize", us=400)
                with trace.op("logging", "user_annotation"):
                    trace.now += 700
                trace.now += 600
    named = idle_for(trace, tmp_path)
    assert named[:2] == [("data loading", "enumerate(DataLoader)#_Iter.__next__"), ("logging", "logging")]


def test_a_copy_inside_leaves_data_loading_its_name_and_so_does_a_lock(tmp_path: Path) -> None:
    trace = Trace()
    with trace.step(1):
        with trace.op("get_batch", "user_annotation"):
            with trace.op("queue.py(154): get", "python_function"):
                trace.now += 3_000
            with trace.op("aten::copy_"):
                trace.launch("Memcpy HtoD", us=20, call="cudaMemcpyAsync", cat="gpu_memcpy")
            with trace.op("<built-in function collect>", "python_function"):
                trace.now += 2_000
        with trace.op("aten::mm"):
            trace.launch("gemm", us=300)
    named = idle_for(trace, tmp_path)
    assert named == [("data loading", "get_batch"), ("garbage collection", "<built-in function collect>")]
