"""Which of several weights each call after the forward pass works for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from foretrace.transforms.linked import Call, Linked, Slot, is_sequence, slots_in


class Owners:
    """The weight that each call of the backward pass and of the optimizer works for.

    What a call makes of a weight's gradient belongs to that weight, and so does what the optimizer keeps beside it. A
    call of the optimizer that touches nobody's tensors, such as one that counts steps, goes with the next one that
    does.

    Parameters
    ----------
    step
        The calls.
    known
        The slots that are somebody's to begin with: weights and their gradients.
    but
        Rows of calls that are not looked at.
    """

    def __init__(self, step: Linked, known: Mapping[int, int], but: set[int]) -> None:
        self._of = dict(known)
        self._calls = [c for c in step.calls if c.op.phase in ("backward", "optimizer") and c.row not in but]
        size = -1
        while size != len(self._of):  # what is kept beside a weight may be read before it meets it
            size = len(self._of)
            for call in self._calls:
                self._spread(call)
        self.of_row = self._rows()
        """The owner of each row that is somebody's."""

    def _spread(self, call: Call) -> None:
        if (lists := lists_of(call)) is not None:
            for values, owner in zip(zip(*lists), self.places(call)):
                self._give(slots_in(list(values)), owner)
        else:
            slots = [*call.reads, *call.made]
            self._give(slots, self._only(slots))

    def _give(self, slots: Iterable[int], owner: int | None) -> None:
        if owner is not None:
            for slot in slots:
                self._of.setdefault(slot, owner)

    def _only(self, slots: Iterable[int]) -> int | None:
        """The one whose slots these are; None for nobody's, and for those of several."""
        owners = {self._of[slot] for slot in slots if slot in self._of}
        return owners.pop() if len(owners) == 1 else None

    def _rows(self) -> dict[int, int]:
        found: dict[int, int] = {}
        waiting: list[int] = []
        for call in self._calls:
            if lists_of(call) is not None:
                waiting = []
                continue
            slots = (*call.reads, *call.made)
            owner = self._only(slots)
            if call.op.phase == "optimizer" and self._of.keys().isdisjoint(slots):
                waiting.append(call.row)
            elif owner is None:
                waiting = []
            else:
                found.update(dict.fromkeys([*waiting, call.row], owner))
                waiting = []
        return found

    def slots(self, owner: int) -> set[int]:
        """What is somebody's."""
        return {slot for slot, of in self._of.items() if of == owner}

    def places(self, call: Call) -> list[int | None]:
        """For a call over lists, the owner of each place; counts of steps stand where the weights do."""
        owners = self._of_places(call)
        if any(owner is not None for owner in owners):
            return owners
        alike = (self._of_places(other) for other in self._calls if lists_of(other))
        known = (found for found in alike if len(found) == len(owners) and any(owner is not None for owner in found))
        return next(known, owners)

    def _of_places(self, call: Call) -> list[int | None]:
        return [self._only(slots_in(list(slots))) for slots in zip(*lists_of(call) or [])]


def lists_of(call: Call) -> list[list[Any]] | None:
    """The lists of tensors that a call walks side by side; None for a call of another kind."""
    if not call.op.name.startswith(("aten::_foreach_", "aten::_fused_")):
        return None
    return [value for value in _values(call) if is_sequence(value) and any(isinstance(v, Slot) for v in value)]


def _values(call: Call) -> Iterator[Any]:
    yield from call.args
    yield from call.kwargs.values()
    yield from call.results
