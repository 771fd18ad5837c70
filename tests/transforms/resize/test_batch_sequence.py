"""Batch size and sequence length: compared with the model at that size."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

import pytest
import torch

import bert
import dlrm
import foretrace as ft
import gpt
import resnet
from foretrace.graph import Constant, ForetraceError, Graph, Op, OpTable, Tensor
from foretrace.graph.graph import cautions
from foretrace.transforms.resize.batch_sequence import batch, batch_size, resizable_batch, sequence
from tests.transforms.agreement import assert_same, shapes, sketched, sketched_now


@pytest.mark.parametrize(("model", "old", "new"), [(dlrm, 48, 96), (gpt, 8, 64), (bert, 4, 16), (resnet, 3, 5)])
def test_every_call_is_the_one_that_the_model_makes(model: ModuleType, old: int, new: int) -> None:
    small, large = (sketched(model, batch=size) for size in (old, new))
    assert batch_size(small) == old
    assert_same(batch(small, new), large)


def test_what_was_found_once_serves_for_every_batch() -> None:
    any_batch = resizable_batch(sketched(gpt, batch=6))
    for new in (3, 10):
        assert_same(any_batch.to(new), sketched(gpt, batch=new))


def test_a_step_is_not_changed_by_its_edits() -> None:
    step = sketched(dlrm, batch=48)
    batch(step, 96)
    assert_same(step, sketched_now(dlrm, batch=48))


def test_a_call_that_a_batch_can_not_be_propagated_through_is_named() -> None:
    given = Tensor((4, 3), "float32", "cpu", (3, 1), id=0, storage=0)
    fixed = Tensor((4, 3), "float32", "cpu", (3, 1), id=1, storage=1)
    made = Tensor((4, 3), "float32", "cpu", (3, 1), id=2, storage=2)
    ops = [
        Op("aten::mul", (given, fixed), outputs=(made,), overload="Tensor", phase="forward"),
        Op("aten::relu_", (fixed,), outputs=(fixed,), overload="default", phase="optimizer"),
    ]
    with pytest.raises(ForetraceError, match="call 0, aten::mul"):
        batch(Graph(OpTable.of(ops)), 8, 4)


@pytest.mark.parametrize(
    "op",
    [
        Op("aten::relu", (Tensor((4,), "load", "cpu", (1,), id=0, storage=0),), overload="default"),
        Op("aten::_indices", (3,), outputs=(Tensor((1,), "int64", id=1),), overload="default"),
        Op("aten::zeros", ([4], Constant("layout", "save")), overload="default"),
        Op("os::system", ("rm",), outputs=(Tensor((4,), "int64", id=1),), overload="default"),
        Op("aten::view", (Tensor((4,), "int8", "cpu", (1,), id=0, storage=0), "x"), overload="default"),
        Op("aten::slice", (Tensor((4,), "int8", "cpu", (1,), id=0, storage=0), 7), overload="Tensor"),
    ],
)
def test_a_hostile_call_ends_in_an_error_of_ours_or_in_none(op: Op) -> None:
    given = Tensor((4, 3), "float32", "cpu", (3, 1), id=9, storage=9)
    used = Op("aten::relu", (given,), outputs=(), overload="default", phase="forward")
    with contextlib.suppress(ForetraceError):
        batch(Graph(OpTable.of([used, op])), 8, 4)


@pytest.mark.parametrize(("made", "said"), [((64, 3), False), ((7, 3), True)])
def test_an_unsupported_operator_is_noted_where_its_results_do_not_follow(made: tuple[int, int], said: bool) -> None:
    x, y = Tensor((64, 8), "float32", id=0, storage=0), Tensor(made, "float32", id=1, storage=1)
    found = batch(Graph(OpTable.of([Op("my::own", (x,), outputs=(y,), overload="default")])), 128)
    assert any("the meta device does not support my::own" in note for note in found.notes) == said


def products(resized: int, fixed: int) -> Graph:
    """Data of a batch of 64, matrix products of it, and others of what a custom operator makes of it."""
    x, weight = (
        Tensor((64, 8), "float32", "cpu", (8, 1), id=0, storage=0),
        Tensor((8, 8), "float32", "cpu", (8, 1), id=1),
    )
    own = Tensor((7, 8), "float32", "cpu", (8, 1), id=2, storage=2)
    ops = [Op("my::own", (x,), outputs=(own,), overload="default", phase="forward")]
    for number, given in enumerate([x] * resized + [own] * fixed, 3):
        made = replace(given, id=number, storage=number)
        ops.append(
            Op("aten::mm", (given, replace(weight, storage=1)), outputs=(made,), overload="default", phase="forward")
        )
    return Graph(OpTable.of(ops))


def test_a_batch_that_changes_no_matrix_product_is_refused() -> None:
    why = (
        "no matrix product or convolution of .*, of 3, changes with a batch of 64; the meta device does not support my"
    )
    with pytest.raises(ForetraceError, match=why) as refused:
        batch(products(resized=0, fixed=3), 128, 64)
    assert "--batch-was" in str(refused.value.advice)


@pytest.mark.parametrize(("resized", "fixed", "cautioned"), [(1, 3, True), (3, 1, False)])
def test_a_batch_that_changes_few_matrix_products_comes_with_a_caution(
    resized: int, fixed: int, cautioned: bool
) -> None:
    found = cautions(batch(products(resized, fixed), 128, 64).notes)
    assert any("only 1 of 4 matrix products" in note for note in found) == cautioned


def test_the_parts_of_an_exchange_change_with_its_buffers() -> None:
    sent, got = (Tensor((32,), "int64", "cpu", (1,), id=number, storage=number) for number in (0, 1))
    ops = [
        Op("aten::new_empty", (sent, [32]), outputs=(got,), overload="default", phase="forward"),
        Op("c10d::alltoall_base_", (got, sent, None, [16, 16], [8, 24], False), overload="default", phase="forward"),
    ]
    assert batch(Graph(OpTable.of(ops)), 16, 8).ops[1].args[3:5] == ([32, 32], [16, 48])


def test_a_batch_of_nothing_makes_no_sense() -> None:
    with pytest.raises(ForetraceError, match="batch can't be 0"):
        batch(sketched(dlrm), 0)


def test_what_was_recorded_must_be_a_size_of_the_inputs() -> None:
    recorded = sketched(dlrm, batch=48)
    with pytest.raises(
        ForetraceError, match="not recorded with a batch of 7: first dimensions of its inputs are 192, 48"
    ):
        batch(recorded, 64, 7)
    assert_same(batch(recorded, 96, 48), batch(recorded, 96))


def test_a_trace_without_arguments_is_refused() -> None:
    shape = Tensor((4, 3), "float32")
    with pytest.raises(ForetraceError, match="does not hold its calls' arguments"):
        batch(Graph(OpTable.of([Op("aten::relu", (shape,), outputs=(shape,))])), 8)


@pytest.mark.parametrize("name", ["gpt2_b2_s256_fp32", "dlrm_default_b512"])
def test_a_trace_of_others_takes_another_batch(shared, name: str) -> None:
    from foretrace.api import load

    trace = load(shared / "traces" / "h200" / name).graphs[0]
    old = batch_size(trace)
    assert old is not None and batch_size(batch(trace, 2 * old)) == 2 * old


def test_many_ids_for_a_sample_do_not_hide_the_batch() -> None:
    assert batch_size(sketched(dlrm, batch=64, pooling=100, rows=(50,) * 12)) == 64


@pytest.mark.parametrize("old", [None, 32])
def test_a_step_that_makes_its_data_itself_says_so(old: int | None) -> None:
    made = Tensor((32, 4), "float32", "cpu", (4, 1), id=0, storage=0)
    step = Graph(OpTable.of([Op("aten::randn", ([32, 4],), outputs=(made,), overload="default", phase="forward")]))
    with pytest.raises(ForetraceError, match="creates its data within the step"):
        batch(step, 8, old)


@pytest.mark.parametrize(("model", "new"), [(gpt, 48), (gpt, 128), (bert, 64)])
def test_with_another_length_every_call_is_the_one_that_the_model_makes(model: ModuleType, new: int) -> None:
    assert_same(sequence(sketched(model), new), sketched(model, seq=new))


def test_autocast_stays_where_it_was() -> None:
    half = {"dtype": "bf16"}
    assert_same(sequence(sketched(bert, options=half), 64), sketched(bert, options=half, seq=64))


def with_positions(tokens: int) -> Graph:
    """A step whose model cuts its positions from a buffer for longer samples, as BERT does in transformers."""

    def build() -> Callable[[], None]:
        words, places, head = torch.nn.Embedding(100, 16), torch.nn.Embedding(32, 16), torch.nn.Linear(16, 4)
        positions = torch.arange(32)[None]
        ids = torch.zeros(4, tokens, dtype=torch.int64)
        weights = [*words.parameters(), *places.parameters(), *head.parameters()]
        optimizer = torch.optim.SGD(weights, lr=0.1)

        def step() -> None:
            head(words(ids) + places(positions[:, : ids.shape[1]])).relu().sum().backward()
            optimizer.step()

        return step

    return ft.sketch(build)


def test_positions_are_cut_from_a_buffer_for_longer_samples() -> None:
    assert shapes(sequence(with_positions(8), 16)) == shapes(with_positions(16))


def test_a_step_without_sequences_says_so() -> None:
    with pytest.raises(ForetraceError, match=r"sequence length of .* can't be found"):
        sequence(sketched(dlrm), 64)


class LowRank(torch.nn.Module):
    """A frozen layer with a trained detour, as LoRA has it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.frozen = torch.nn.Linear(width, width)
        self.down, self.up = torch.nn.Linear(width, 2, bias=False), torch.nn.Linear(2, width, bias=False)
        self.register_buffer("scale", torch.randn(width, width))
        self.frozen.requires_grad_(False)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return given + self.frozen(given) * self.scale[0] + self.up(self.down(given))


def low_rank(samples: int) -> Graph:
    def build() -> Callable[[], None]:
        model = torch.nn.Sequential(*(LowRank(64) for _ in range(4)))
        optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad])
        given = torch.randn(samples, 8, 64)

        def step() -> None:
            model(given).square().mean().backward()
            optimizer.step()

        return step

    return ft.sketch(build)


@pytest.mark.parametrize("old", [None, 4])
def test_frozen_weights_and_buffers_of_modules_are_no_data(old: int | None) -> None:
    assert batch_size(low_rank(4)) == 4
    assert_same(batch(low_rank(4), 16, old), low_rank(16))


def test_averaged_weights_of_a_copied_model_are_no_data() -> None:
    def build() -> Callable[[], None]:
        model = torch.nn.Linear(32, 32)
        averaged = [weight.detach().clone() for weight in model.parameters()]
        optimizer = torch.optim.AdamW(model.parameters())
        given = torch.randn(4, 32)

        def step() -> None:
            model(given).square().mean().backward()
            optimizer.step()
            for mean, weight in zip(averaged, model.parameters()):
                mean.lerp_(weight.detach(), 0.1)

        return step

    assert batch_size(ft.sketch(build)) == 4
    product = next(op for op in batch(ft.sketch(build), 8).ops if op.name == "aten::addmm")
    assert [tensor.shape for tensor in product.tensors] == [(32,), (8, 32), (32, 32)]


def bags(samples: int) -> Graph:
    """Lookups by offsets that end with the number of ids, as torchrec calls them."""

    def build() -> Callable[[], None]:
        tables = torch.nn.ModuleList(torch.nn.EmbeddingBag(50, 8, mode="sum", include_last_offset=True) for _ in "ab")
        optimizer = torch.optim.SGD(tables.parameters(), lr=0.1)
        ids, ends = torch.randint(0, 50, (3 * samples,)), torch.arange(0, 3 * samples + 1, 3)

        def step() -> None:
            torch.cat([table(ids, ends) for table in tables], 1).square().mean().backward()
            optimizer.step()

        return step

    return ft.sketch(build)


def test_offsets_are_one_more_than_the_batch() -> None:
    assert batch_size(bags(8)) == 8
    lookups = [op for op in batch(bags(8), 16).ops if op.name == "aten::_embedding_bag"]
    assert [tensor.shape for tensor in lookups[0].tensors] == [(50, 8), (48,), (17,)]
    assert [op.produced[0].shape for op in lookups] == [(16, 8), (16, 8)]


def test_a_data_set_of_which_samples_are_picked_is_no_batch() -> None:
    def build() -> Callable[[], None]:
        model, samples = torch.nn.Linear(4, 4), torch.randn(512, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step() -> None:
            model(torch.stack([samples[number] for number in range(8)])).sum().backward()
            optimizer.step()

        return step

    with pytest.raises(ForetraceError, match="is not clear") as raised:
        batch(ft.sketch(build), 16)
    assert "--batch-was" in raised.value.advice


def test_what_layers_are_given_must_be_whole_samples() -> None:
    """Tokens with one more than is trained on, of a model that nobody knows the modules of: 9 is no batch."""

    def build() -> Callable[[], None]:
        weights = [torch.randn(12, 12, requires_grad=True) for _ in range(4)]
        optimizer = torch.optim.SGD(weights, lr=0.1)
        tokens = torch.randn(9, 12)

        def step() -> None:
            x = tokens[:8]
            for weight in weights:
                x = torch.mm(x, weight)
            x.sum().backward()
            optimizer.step()

        return step

    with pytest.raises(ForetraceError, match="is not clear") as raised:
        batch(ft.sketch(build), 16)
    assert "--batch-was" in raised.value.advice
