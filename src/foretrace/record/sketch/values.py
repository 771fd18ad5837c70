"""Values in a sketch: small tensors that are made from constants are computed beside their fake ones.

Architectures are read from tensors (``torch.linspace(0, rate, depth).tolist()``), and steps count in tensors. Such
values follow from the script alone, so they are computed for real: each storage of a fake tensor may have a real one
behind it, which a call reads where all its arguments have one, and which a write with unknown values ends. Random
integers (lengths, ids, labels), numbers from 0 to 1 (boxes, positions) and masks of random elements are drawn, so that
shapes which follow from them are those of one real batch. Other random numbers, as those of `torch.randn`, and what is
computed from them, are unknown.

Some results of unknown tensors are assumed, since they are the same in every step that goes well: numbers are finite,
checks of all elements pass (`ASSUMED`). Where the largest elements of an unknown tensor are is drawn, as if all were
alike: which experts a router chooses, which tokens a decoder samples. Values that rest on an assumption are marked.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_map_only

aten = torch.ops.aten
MAX_ELEMENTS = 1 << 16
"""Larger tensors are unknown: a sketch computes nothing that takes time or memory."""
MAX_INTEGERS = 1 << 22
"""The same of integers and flags: offsets and lengths of a batch of lookups, which decide shapes."""
FINITE, CHECKED, SHUFFLED = "losses and gradients are finite", "checks of all elements pass", "ids are in order"
DRAWN = "random integers and masks are those that were drawn in the sketch"
RANKED = "where the largest elements are, which was drawn at random"
CHANCE = "what happens by chance, which was drawn once"
ALIKE = "other ranks send what this one has"
LONGEST = "sequences of a CTC loss are as long as they may be"
EVEN = "ids hit the rows of a table evenly"
COUNTED = "numbers that are counted are below minlength"
"""What values that are assumed rest on."""
DRAWS = ("randint", "randint_like", "random_", "bernoulli")
"""Calls that make random integers and flags."""
UNIFORM = (aten.rand.default, aten.rand_like.default, aten.uniform_.default)
"""Calls that make random numbers from 0 to 1: comparing them gives a mask of random elements."""
COMPARISONS = (aten.lt, aten.le, aten.gt, aten.ge)
RANKS = (aten.argmax, aten.argmin, aten.multinomial)
RANKS_WITH_VALUES = (aten.topk, aten.sort, aten.max, aten.min, aten.kthvalue, aten.median, aten.mode)
"""Calls whose result, or second one of two, says where elements are that are large or small, or were sampled."""
OVERWRITES = (aten.zero_.default, aten.fill_.Scalar, aten.fill_.Tensor, aten.copy_.default,
              *(getattr(aten.random_, overload) for overload in aten.random_.overloads()))  # fmt: skip
"""Calls after which a tensor holds what they were given, whatever was in it."""
SHAPED_LIKE = (*(getattr(aten, name).default for name in (
    "ones_like", "zeros_like", "full_like", "new_ones", "new_zeros", "new_full")),
    *(getattr(aten.randint_like, overload) for overload in aten.randint_like.overloads()))  # fmt: skip
"""Calls that take the shape or dtype of a tensor, and not its values."""
MOVES_BETWEEN_RANKS = {"broadcast_": (0, 0), "allgather_": (0, 1), "_allgather_base_": (0, 1), "allreduce_": (0, 0),
                       "alltoall_base_": (0, 1)}  # fmt: skip
"""Collectives whose results follow from what ranks send, with the places of results and of what this rank sends."""
UNKNOWN = object()
UNSCALES = aten._amp_foreach_non_finite_check_and_unscale_.default


class Held(NamedTuple):
    """What a fake storage holds."""

    storage: torch.UntypedStorage
    assumed: frozenset[str]
    """What the values rest on, besides the script itself."""
    fake: weakref.ref[torch.UntypedStorage]


@dataclass
class Drawn:
    """Random numbers from 0 to 1 that stand for those of an unknown tensor, so that choices by them agree."""

    fake: weakref.ref[torch.UntypedStorage]
    uniform: bool
    """Whether its own numbers are such ones, and not just their order."""
    bounds: tuple[float, float] | None = None
    """From where to where its only number is, for one at random."""
    numbers: torch.Tensor | None = None
    """One for each element of the storage, once they are asked for."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread: values are small, and threads that start and wait for each other take longer."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class Values:
    """The values that are known, by the storage of the fake tensor."""

    def __init__(self) -> None:
        self._held: dict[int, Held] = {}
        self._drawn: dict[int, Drawn] = {}
        self.written: set[int] = set()
        """Storages that calls wrote to, by their addresses."""

    def of(self, fake: Any) -> torch.Tensor | None:
        """The values of a fake tensor; None where they are unknown."""
        held = self._find(fake)
        if held is None:
            return None
        geometry = fake.storage_offset(), fake.shape, fake.stride()
        with no_dispatch(), torch._C.DisableTorchFunction():
            return torch.empty(0, dtype=fake.dtype, device="cpu").set_(held.storage, *geometry)

    def assumed(self, *fakes: Any) -> frozenset[str]:
        """What the values of fake tensors rest on."""
        return frozenset().union(*(held.assumed for fake in fakes if (held := self._find(fake))))

    @one_thread()
    def hold(self, fake: Any, values: torch.Tensor, assumed: frozenset[str] = frozenset()) -> None:
        """Remember the values of a fake tensor, where it is small; they are copied."""
        if not is_small(fake):
            return
        with no_dispatch(), torch._C.DisableTorchFunction():
            storage, nbytes = fake.untyped_storage(), fake.untyped_storage().nbytes()
            real = torch.zeros(nbytes, dtype=torch.uint8, device="cpu").untyped_storage()
            key = storage._cdata
            self._held[key] = Held(real, assumed, weakref.ref(storage, lambda _: self._held.pop(key, None)))
            view = self.of(fake)
            assert view is not None
            view.copy_(values)

    def hold_storage(self, fake: Any, flags: torch.Tensor, assumed: frozenset[str]) -> None:
        """Remember the values of all of a mask's storage, of which the tensor may be a part."""
        self.hold(fake, torch.zeros((), dtype=torch.bool), assumed)
        with no_dispatch(), torch._C.DisableTorchFunction():
            torch.empty(0, dtype=torch.bool).set_(self._held[fake.untyped_storage()._cdata].storage).copy_(flags)

    def follow(self, func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        """Compute the values that a call makes or changes; forget those that it makes unknown."""
        with torch._C.DisableTorchFunction():
            kind = traits(func)
            if kind.keeps_values:
                return
            given, made = list(_fakes((*args, *kwargs.values()))), list(_fakes((result,)))
            places = [args[place] if place < len(args) else kwargs.get(name) for place, name in kind.written]
            written = [fake for fake in _fakes(places) if fake.layout == torch.strided]
            self.written.update(fake.untyped_storage()._cdata for fake in written)
            if not written and all(self._find(fake) or _is_among(fake, given) for fake in made):
                return  # a view
            if func is UNSCALES and self.of(args[1]) is not None:
                self.hold(args[1], self.of(args[1]), frozenset({FINITE}))
                written = list(args[0])
            elif self._computed(func, args, kwargs, given, made, written) or self._received(func, args):
                return
            for fake in written:
                self._forget(fake.untyped_storage()._cdata)
            self._assume(func, args, kwargs, made)

    def overwrite(self, fake: Any) -> None:
        """Forget the values of a tensor that a generated kernel has written."""
        storage = fake.untyped_storage()._cdata
        self.written.add(storage)
        self._forget(storage)

    def _forget(self, storage: int) -> None:
        self._held.pop(storage, None)
        self._drawn.pop(storage, None)

    def at_random(self, fake: Any) -> float | None:
        """The number that was drawn for a tensor which holds one at random; None of others."""
        drawn = self._drawn.get(fake.untyped_storage()._cdata) if fake.layout == torch.strided else None
        if drawn is None or drawn.bounds is None or fake.untyped_storage().nbytes() != fake.element_size():
            return None
        numbers, (low, high) = self._numbers(fake), drawn.bounds
        with no_dispatch():
            return None if numbers is None else low + (high - low) * numbers.item()

    @one_thread()
    def compute(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """What a call gives, from the values of its arguments; `UNKNOWN` where one has none, or it fails."""
        if not traits(func).computable:
            return UNKNOWN

        def by_shape(fake: Any) -> bool:  # FBGEMM's: numbers that belong to ids are moved with them, and decide nothing
            return func in SHAPED_LIKE or (func.namespace == "fbgemm" and fake.is_floating_point())

        inputs = [fake for fake in _fakes((*args, *kwargs.values())) if not by_shape(fake)]
        lacking = [*filter(self._lacks, inputs)]
        if not all(map(self._is_uniform, lacking)):
            return UNKNOWN
        for fake in lacking:
            self._reveal(fake)

        def values(fake: Any) -> torch.Tensor | None:
            return _same_shape(fake) if by_shape(fake) else self.of(fake)

        args, kwargs = tree_map_only(FakeTensor, values, (args, {**kwargs}))
        if "device" in kwargs:
            kwargs["device"] = torch.device("cpu")
        kwargs.pop("pin_memory", None)
        try:
            with no_dispatch(), torch._C.DisableTorchFunction(), torch.no_grad():
                return func(*args, **kwargs)
        except Exception:  # what is wrong with the call is said where it really runs
            return UNKNOWN

    def _computed(self, func: Any, args: Any, kwargs: Any, given: Any, made: Any, written: Any) -> bool:
        kind = traits(func)
        if not kind.computable or not all(map(is_small, made)):
            return False
        flags = func is aten.bernoulli.default
        if kind.draws and not all(fake.dim() and (flags or not fake.is_floating_point()) for fake in made):
            return False  # one number at random is a decision, and no data
        if self._overwrites(func, args) and self._lacks(args[0]) and _fills_its_storage(args[0]):
            self.hold(args[0], torch.zeros((), dtype=args[0].dtype))
        read = () if func in SHAPED_LIKE else given
        values = self.compute(func, args, kwargs)
        if values is UNKNOWN:
            return False
        assumed = self.assumed(*read) | ({DRAWN} if kind.draws else set())
        if func.overloadpacket in COMPARISONS and made[0].numel() == 1 and any(t.is_floating_point() for t in read):
            assumed = frozenset(CHANCE if why is DRAWN else why for why in assumed)
        for fake, real in zip(made, (value for value in _leaves(values) if isinstance(value, torch.Tensor))):
            if not _is_among(fake, given) and not (func.namespace == "fbgemm" and fake.is_floating_point()):
                self.hold(fake, real, assumed)
        for fake in written if assumed else ():
            key = fake.untyped_storage()._cdata
            self._held[key] = self._held[key]._replace(assumed=assumed | self._held[key].assumed)
        return True

    def _overwrites(self, func: Any, args: Any) -> bool:
        """Whether nothing is left of what was in the first argument."""
        if func is not aten.scatter_.src:
            return func in OVERWRITES
        places = self.of(args[2])  # a permutation, as where one is inverted
        with no_dispatch(), torch._C.DisableTorchFunction():
            return places is not None and places.dim() == 1 and len(places.unique()) == args[0].numel()

    def _received(self, func: Any, args: Any) -> bool:
        """Hold what a collective brings from other ranks, where it moves what they have, or reduces zeros."""
        places = MOVES_BETWEEN_RANKS.get(func.__name__.partition(".")[0] if func.namespace == "c10d" else "")
        if places is None:
            return False
        received, (sent, *_) = (list(_fakes((args[place],))) for place in places)
        known, assumed = self.of(sent), self.assumed(sent) | {ALIKE}
        if known is not None and func.__name__.startswith("alltoall_base_"):
            known = _own_part(known, args[2], args[4])
        nbytes = sum(fake.numel() * fake.element_size() for fake in received)
        whole = all(map(_fills_its_storage, received)) or nbytes == received[0].untyped_storage().nbytes()
        if known is None or not whole or not all(map(is_small, received)):
            return False
        if func.__name__.startswith("allreduce_") and bool(known.any()):
            return False  # which reduction it is, is not known here: zeros stay zeros in each
        with no_dispatch(), torch._C.DisableTorchFunction():
            for fake in received:
                if self._lacks(fake):
                    self.hold(fake, torch.zeros((), dtype=fake.dtype), assumed)
                view = self.of(fake)
                assert view is not None
                times = -(-fake.numel() // max(1, known.numel())) if known.numel() else 0
                view.copy_(known.flatten().repeat(times)[: fake.numel()].view(fake.shape) if times else 0)
                key = fake.untyped_storage()._cdata
                self._held[key] = self._held[key]._replace(assumed=assumed)
        return True

    def _assume(self, func: Any, args: Any, kwargs: dict[str, Any], made: list[Any]) -> None:
        """Hold what a result of unknown tensors is assumed to be."""
        if func in UNIFORM:
            low, high = (*args[1:], *(0.0, 1.0)[len(args[1:]) :]) if func is aten.uniform_.default else (0.0, 1.0)
            if made[0].numel() == 1 or not args[1:]:
                self._stand_in(made[0], uniform=not args[1:]).bounds = (low, high)
        packet = func.overloadpacket
        if packet in RANKS or (packet in RANKS_WITH_VALUES and len(made) == 2):
            if (
                made[-1].dim()
                and is_small(made[-1])
                and (places := self._drawn_places(func, args, kwargs, made[-1])) is not None
            ):
                self.hold(made[-1], places, frozenset({RANKED}) | self.assumed(args[0]))
            return
        if packet in COMPARISONS and is_small(made[0]) and (mask := self._drawn_mask(func, args)) is not None:
            self.hold(made[0], mask, self.assumed(*_fakes(args)) | {CHANCE if mask.numel() == 1 else DRAWN})
            return
        rule = ASSUMED.get(packet)
        found = rule(self, *args) if rule and len(made) == 1 and is_small(made[0]) else None
        if found is not None:
            value, why = found
            with no_dispatch():
                self.hold(made[0], torch.as_tensor(value), frozenset(why))

    def _stand_in(self, fake: Any, uniform: bool = False) -> Drawn:
        """What stands for the numbers of a tensor, until it is written to."""
        storage = fake.untyped_storage()
        key = storage._cdata
        if key not in self._drawn:
            self._drawn[key] = Drawn(weakref.ref(storage, lambda _: self._drawn.pop(key, None)), uniform)
        return self._drawn[key]

    def _numbers(self, fake: Any) -> torch.Tensor | None:
        """Random numbers for the elements of a tensor: the same whenever they are asked for; None of a large one."""
        count = fake.untyped_storage().nbytes() // fake.element_size() if fake.layout == torch.strided else 0
        if not 0 < count <= MAX_INTEGERS:
            return None
        drawn = self._stand_in(fake)
        if drawn.numbers is None or len(drawn.numbers) != count:
            drawn.numbers = torch.rand(count)
        return drawn.numbers.as_strided(fake.shape, fake.stride(), fake.storage_offset())

    def _is_uniform(self, fake: Any) -> bool:
        """Whether a tensor is a small part of random numbers from 0 to 1; one number alone is a decision, no data."""
        if not is_small(fake) or fake.untyped_storage().nbytes() <= fake.element_size():
            return False
        drawn = self._drawn.get(fake.untyped_storage()._cdata)
        return drawn is not None and drawn.uniform

    def _reveal(self, fake: Any) -> None:
        """Hold the numbers from 0 to 1 that were drawn for a tensor's storage."""
        if self._lacks(fake) and self._numbers(fake) is not None:
            key = fake.untyped_storage()._cdata
            numbers = self._drawn.pop(key).numbers
            self.hold(fake, torch.zeros(()), frozenset({DRAWN}))
            with no_dispatch(), torch._C.DisableTorchFunction():
                torch.empty(0, dtype=fake.dtype).set_(self._held[key].storage).copy_(numbers)

    def _drawn_mask(self, func: Any, args: Any) -> torch.Tensor | None:
        """A mask of random elements, where random numbers from 0 to 1 are compared with what is known."""

        def operand(value: Any) -> Any:
            if not isinstance(value, FakeTensor) or value.layout != torch.strided:
                return value
            drawn = self._drawn.get(value.untyped_storage()._cdata)
            return self._numbers(value) if drawn is not None and drawn.uniform else self.of(value)

        operands = [operand(value) for value in args]
        with no_dispatch():
            return None if any(each is None for each in operands) else func(*operands)

    def _drawn_places(self, func: Any, args: Any, kwargs: dict[str, Any], made: Any) -> torch.Tensor | None:
        """Where the largest elements of an unknown tensor are, if all are alike; None of a whole tensor."""
        with no_dispatch():
            if (numbers := self._numbers(args[0])) is not None:
                result = func(numbers, *args[1:], **kwargs)
                return result if isinstance(result, torch.Tensor) else result[-1]
            given = dict(zip((argument.name for argument in func._schema.arguments), args)) | kwargs
            if (dim := given.get("dim", -1)) is None or not made.numel():
                return None
            count, shape = args[0].shape[dim], list(made.shape)
            if len(shape) < args[0].dim() or shape[dim] == 1:
                return torch.randint(count, shape)
            found, shape[dim] = shape[dim], 1
            first, apart = torch.randint(count, shape), torch.randperm(max(count, found))[:found]
            shape = [1] * len(shape)
            shape[dim] = found
            return (first + apart.view(shape)) % count

    def _lacks(self, fake: Any) -> bool:
        return self._find(fake) is None

    def _find(self, fake: Any) -> Held | None:
        if fake.layout != torch.strided:
            return None
        storage = fake.untyped_storage()
        held = self._held.get(storage._cdata)
        if held is None or held.storage.nbytes() != storage.nbytes() or held.fake() is None:
            return None
        return held


def _own_part(sent: torch.Tensor, group: Any, sizes: list[int]) -> torch.Tensor:
    """What this rank sends itself in an all_to_all: the others send it as much."""
    held = torch.distributed.ProcessGroup.unbox(group)
    rank, world = held.rank(), held.size()
    with no_dispatch(), torch._C.DisableTorchFunction():
        parts = sent.split(list(sizes)) if sizes else sent.chunk(world)
        return parts[rank] if rank < len(parts) else sent[:0]


def _same_shape(fake: Any) -> torch.Tensor:
    """A real tensor of the same shape and dtype, in which every element is the same one."""
    with no_dispatch(), torch._C.DisableTorchFunction():
        return torch.zeros((), dtype=fake.dtype).expand(fake.shape)


def _fakes(values: Iterable[Any]) -> Iterator[Any]:
    return (value for value in _leaves(values) if isinstance(value, FakeTensor))


def _leaves(values: Any) -> Iterator[Any]:
    """Values of arguments or results, which are nested twice at most."""
    for value in values if isinstance(values, (list, tuple)) else (values,):
        if isinstance(value, (list, tuple)):
            yield from _leaves(value)
        else:
            yield value


def is_small(fake: Any, most: int = MAX_ELEMENTS) -> bool:
    """Whether values of a tensor of this size are followed."""
    most = most if fake.is_floating_point() else MAX_INTEGERS
    return (
        fake.layout == torch.strided
        and fake.fake_device.type != "meta"
        and not fake.is_complex()
        and fake.untyped_storage().nbytes() <= most * fake.element_size()
    )


def _fills_its_storage(fake: Any) -> bool:
    return is_small(fake) and fake.numel() * fake.element_size() == fake.untyped_storage().nbytes()


def _is_same(one: Any, other: Any) -> bool:
    return one is other or (
        _is_among(one, [other])
        and (one.storage_offset(), one.shape, one.stride()) == (other.storage_offset(), other.shape, other.stride())
    )


def _is_among(fake: Any, others: Iterable[Any]) -> bool:
    """Whether a tensor lies in the storage of one of some others."""
    key = fake.untyped_storage()._cdata if fake.layout == torch.strided else None
    return any(key == other.untyped_storage()._cdata for other in others if other.layout == torch.strided)


class Traits(NamedTuple):
    """What an operator does to values."""

    written: tuple[tuple[int, str], ...]
    """Arguments that it writes to, by place and name; a collective may write to any that it is given."""
    computable: bool
    """Whether its results follow from its arguments."""
    keeps_values: bool
    """Whether it changes the geometry of a tensor alone, or asks about it."""
    draws: bool = False
    """Whether it makes random integers."""


@functools.cache
def traits(func: Any) -> Traits:
    """What an operator does to values.

    >>> traits(aten.add_.Tensor)
    Traits(written=((0, 'self'),), computable=True, keeps_values=False, draws=False)
    """
    space, _, name = func._schema.name.partition("::")
    written = tuple(
        (place, argument.name)
        for place, argument in enumerate(func._schema.arguments)
        if space == "c10d" or (argument.alias_info is not None and argument.alias_info.is_write)
    )
    draws = name in DRAWS and "p" not in {argument.name for argument in func._schema.arguments}
    random = "empty" in name or (torch.Tag.nondeterministic_seeded in func.tags and not draws)
    geometry = torch.Tag.inplace_view in func.tags and "resize" not in name
    computes = space in ("aten", "prims") or (space == "fbgemm" and "_codegen_" not in name)
    return Traits(written, computes and not random, geometry or space == "prim", draws)


# Results of unknown tensors that are assumed: the value, and what for.

Assumption = tuple[Any, Iterable[str]]


def _finite(values: Values, *args: Any) -> Assumption:
    return False, (FINITE,)


def _compared(equal: bool) -> Callable[..., Assumption | None]:
    """A number equals itself, and no infinite one: how PyTorch asks whether it is finite."""

    def rule(values: Values, one: Any, other: Any) -> Assumption | None:
        if isinstance(other, float) and other in (float("inf"), float("-inf")):
            return not equal, (FINITE,)
        return (equal, (FINITE,)) if isinstance(other, FakeTensor) and _is_same(one, other) else None

    return rule


def _decided(by: bool) -> Callable[..., Assumption | None]:
    """The result that one operand of an "or" (``by`` true) or an "and" decides alone."""

    def rule(values: Values, *operands: Any) -> Assumption | None:
        for operand in operands[:2]:
            known = values.of(operand) if isinstance(operand, FakeTensor) else None
            if known is not None and (known.dtype == torch.bool or not by) and bool((known != 0).eq(by).all()):
                return by, values.assumed(operand)
        return None

    return rule


def _checked(passed: bool) -> Callable[..., Assumption | None]:
    """A check of all elements passes; one for each row (``all(dim)``) chooses among rows."""

    def rule(values: Values, one: Any, *dims: Any) -> Assumption | None:
        return None if dims else (passed, (CHECKED,))

    return rule


ASSUMED: dict[Any, Callable[..., Assumption | None]] = {
    aten.isnan: _finite,
    aten.isinf: _finite,
    aten.eq: _compared(equal=True),
    aten.ne: _compared(equal=False),
    aten.all: _checked(passed=True),
    aten._is_all_true: lambda values, *args: (True, (CHECKED,)),
    aten.any: _checked(passed=False),
    aten._is_any_true: lambda values, *args: (False, (CHECKED,)),
    aten.randperm: lambda values, count, *args: (torch.arange(count), (SHUFFLED,)),
    aten.bitwise_or: _decided(by=True),
    aten.logical_or: _decided(by=True),
    aten.bitwise_and: _decided(by=False),
    aten.logical_and: _decided(by=False),
}
"""For each op whose result may be assumed, the rule: given the known values and the arguments."""
