"""What the names of annotations and Python functions say."""

import pytest

from foretrace.analysis.activities import meaning


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
