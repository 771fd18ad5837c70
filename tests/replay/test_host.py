"""What a step's lines call besides operators."""

from __future__ import annotations

import pytest
import torch

from foretrace.replay.harness import host


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "here", host.Here())


def test_a_device_is_replaced_by_the_one_that_was_chosen() -> None:
    host.here.kind, host.here.main = "meta", "cuda"
    assert host.device("cuda:3") == torch.device("meta") and host.device("cpu") == torch.device("cpu")


def test_a_stand_in_makes_what_the_call_made() -> None:
    entry = {"shape": [2, 3], "stride": [1, 2], "dtype": "bfloat16", "device": "cpu", "layout": "strided"}
    sparse = {"shape": [4], "stride": None, "dtype": "float32", "device": "cpu", "layout": "sparse_coo"}
    host.here.calls = [{"host_us": 0.0, "device_us": 0.0, "makes": [entry, None, [sparse]]}]
    first, second, (third,) = host.stand_in(0)
    assert first.stride() == (1, 2) and first.dtype == torch.bfloat16 and not first.any()
    assert second is None and third.layout == torch.sparse_coo


def test_memory_can_be_let_go() -> None:
    tensor = torch.zeros(8)
    host.resize(tensor, 0)
    assert tensor.untyped_storage().nbytes() == 0
