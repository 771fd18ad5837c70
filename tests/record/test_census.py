"""Who is who among tensors."""

from __future__ import annotations

import gc
import weakref

import torch

from foretrace.record.watch.tensors import Census


def test_a_tensor_keeps_its_id_while_it_lives() -> None:
    census = Census()
    a, b = torch.zeros(2), torch.zeros(2)
    first = census.describe(a)
    assert census.describe(b).id != first.id
    assert census.describe(a) == first


def test_no_id_is_given_twice_although_python_reuses_addresses() -> None:
    census = Census()
    described = []
    for _ in range(50):
        passing = torch.zeros(16)
        described.append(census.describe(passing))
        del passing
    assert len({tensor.id for tensor in described}) == 50
    assert len({tensor.storage for tensor in described}) == 50


def test_views_share_a_storage_and_tell_where_in_it_they_lie() -> None:
    census = Census()
    whole = torch.zeros(4, 6)
    seen, part = census.describe(whole), census.describe(whole[1:, ::2])
    assert part.storage == seen.storage and part.id != seen.id
    assert (part.shape, part.stride, part.offset) == ((3, 3), (6, 2), 6)
    assert census.storages[seen.storage].nbytes == 4 * 6 * 4


def test_dtype_device_and_layout_are_plain_words() -> None:
    described = Census().describe(torch.zeros(3, dtype=torch.bfloat16))
    assert (described.dtype, described.device, described.layout) == ("bfloat16", "cpu", "strided")


def test_a_sparse_tensor_has_no_storage_of_its_own() -> None:
    described = Census().describe(torch.eye(3).to_sparse())
    assert (described.layout, described.storage, described.stride) == ("sparse_coo", -1, None)


def test_a_tensor_is_not_kept_alive() -> None:
    census = Census()
    held = torch.zeros(4)
    census.describe(held)
    watched = weakref.ref(held)
    del held
    gc.collect()
    assert watched() is None
    assert not census._tensors and not census._living


def test_birth_and_death_are_in_op_order() -> None:
    census = Census()
    kept = torch.zeros(1)
    before = census.describe(kept)
    census.now = 3
    passing = torch.zeros(4)
    born = census.describe(passing)
    census.now = 5
    del passing
    assert census.freed() == (born.storage,)
    assert census.freed() == ()
    assert (census.storages[born.storage].birth, census.storages[born.storage].death) == (3, 6)
    assert (census.storages[before.storage].birth, census.storages[before.storage].death) == (-1, -1)


def test_a_storage_outlives_the_tensor_that_made_it_while_a_view_is_left() -> None:
    census = Census()
    whole = torch.zeros(8)
    census.describe(whole)
    view = whole[:2]
    del whole
    assert census.freed() == ()
    del view
    assert len(census.freed()) == 1


def test_a_resized_storage_ends_and_another_begins() -> None:
    census = Census()
    tensor = torch.zeros(8)
    old = census.describe(tensor).storage
    census.now = 2
    storage = tensor.untyped_storage()
    assert census.resized(storage, 64) == (old, new := old + 1)
    storage.resize_(64)
    assert census.freed() == (old,)
    assert census.describe(tensor).storage == new
    assert census.storages[new].nbytes == 64 and census.storages[new].birth == 2


def test_devices_may_be_told_by_another() -> None:
    described = Census(lambda tensor: "cuda:0").describe(torch.zeros(2))
    assert described.device == "cuda:0"


def test_a_fake_storage_is_where_the_first_tensor_on_it_says() -> None:
    census = Census(device_name=lambda tensor: "cuda:0")
    hollow = torch.zeros(16, device="meta")
    old, new = census.resized(hollow.untyped_storage(), 128)
    assert census.storages[new].device == "meta", "nobody knows better yet"
    assert census.describe(hollow).storage == new
    assert {census.storages[number].device for number in (old, new)} == {"cuda:0"}
