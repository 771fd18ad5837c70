"""Who is who among tensors."""

from __future__ import annotations

import gc
import weakref

import torch

from foretrace.record.watch.tensors import TensorRegistry


def test_a_tensor_keeps_its_id_while_it_lives() -> None:
    registry = TensorRegistry()
    a, b = torch.zeros(2), torch.zeros(2)
    first = registry.describe(a)
    assert registry.describe(b).id != first.id
    assert registry.describe(a) == first


def test_no_id_is_given_twice_although_python_reuses_addresses() -> None:
    registry = TensorRegistry()
    described = []
    for _ in range(50):
        passing = torch.zeros(16)
        described.append(registry.describe(passing))
        del passing
    assert len({tensor.id for tensor in described}) == 50
    assert len({tensor.storage for tensor in described}) == 50


def test_views_share_a_storage_and_tell_where_in_it_they_lie() -> None:
    registry = TensorRegistry()
    whole = torch.zeros(4, 6)
    seen, part = registry.describe(whole), registry.describe(whole[1:, ::2])
    assert part.storage == seen.storage and part.id != seen.id
    assert (part.shape, part.stride, part.offset) == ((3, 3), (6, 2), 6)
    assert registry.storages[seen.storage].nbytes == 4 * 6 * 4


def test_dtype_device_and_layout_are_plain_words() -> None:
    described = TensorRegistry().describe(torch.zeros(3, dtype=torch.bfloat16))
    assert (described.dtype, described.device, described.layout) == ("bfloat16", "cpu", "strided")


def test_a_sparse_tensor_has_no_storage_of_its_own() -> None:
    described = TensorRegistry().describe(torch.eye(3).to_sparse())
    assert (described.layout, described.storage, described.stride) == ("sparse_coo", -1, None)


def test_a_tensor_is_not_kept_alive() -> None:
    registry = TensorRegistry()
    held = torch.zeros(4)
    registry.describe(held)
    watched = weakref.ref(held)
    del held
    gc.collect()
    assert watched() is None
    assert not registry._tensors and not registry._living


def test_birth_and_death_are_in_op_order() -> None:
    registry = TensorRegistry()
    kept = torch.zeros(1)
    before = registry.describe(kept)
    registry.now = 3
    passing = torch.zeros(4)
    born = registry.describe(passing)
    registry.now = 5
    del passing
    assert registry.freed() == (born.storage,)
    assert registry.freed() == ()
    assert (registry.storages[born.storage].birth, registry.storages[born.storage].death) == (3, 6)
    assert (registry.storages[before.storage].birth, registry.storages[before.storage].death) == (-1, -1)


def test_a_storage_outlives_the_tensor_that_made_it_while_a_view_is_left() -> None:
    registry = TensorRegistry()
    whole = torch.zeros(8)
    registry.describe(whole)
    view = whole[:2]
    del whole
    assert registry.freed() == ()
    del view
    assert len(registry.freed()) == 1


def test_a_resized_storage_ends_and_another_begins() -> None:
    registry = TensorRegistry()
    tensor = torch.zeros(8)
    old = registry.describe(tensor).storage
    registry.now = 2
    storage = tensor.untyped_storage()
    assert registry.resized(storage, 64) == (old, new := old + 1)
    storage.resize_(64)
    assert registry.freed() == (old,)
    assert registry.describe(tensor).storage == new
    assert registry.storages[new].nbytes == 64 and registry.storages[new].birth == 2


def test_devices_may_be_told_by_another() -> None:
    described = TensorRegistry(lambda tensor: "cuda:0").describe(torch.zeros(2))
    assert described.device == "cuda:0"


def test_a_fake_storage_is_where_the_first_tensor_on_it_says() -> None:
    registry = TensorRegistry(device_name=lambda tensor: "cuda:0")
    hollow = torch.zeros(16, device="meta")
    old, new = registry.resized(hollow.untyped_storage(), 128)
    assert registry.storages[new].device == "meta", "nobody knows better yet"
    assert registry.describe(hollow).storage == new
    assert {registry.storages[number].device for number in (old, new)} == {"cuda:0"}


def test_a_weight_that_no_call_uses_takes_memory() -> None:
    registry = TensorRegistry()
    used, unused = torch.zeros(4), torch.zeros(256)
    registry.describe(used)
    for weight in (used, unused, torch.zeros(0)):
        registry.hold(weight)
    assert [(storage.nbytes, storage.held, storage.birth) for storage in registry.storages.values()] == [
        (16, True, -1), (1024, True, -1),
    ]  # fmt: skip
