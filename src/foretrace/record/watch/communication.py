"""Process groups, reductions and works, read from the opaque arguments of collectives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch

from foretrace.graph import Constant
from foretrace.record.watch.compiled_calls import skip_compilation

c10d: Any = getattr(torch._C, "_distributed_c10d", None)
"""The C++ side of torch.distributed; None in a torch built without it."""


class Communication:
    """Describes process groups, reductions and works as an op passes them.

    A reduction reaches the dispatcher as an opaque object, so it is noted where Python calls the group. Calls that C++
    makes by itself (DDP's reducer) always sum.
    """

    def __init__(self) -> None:
        self.groups: dict[str, tuple[int, ...]] = {}
        self._reduction = "sum"
        self._works: dict[int, tuple[int, object]] = {}
        """Works not waited for yet, referenced so that their ids stay unique."""
        self._issued = 0

    def describe(self, box: Any) -> Constant:
        """A boxed argument or result of a c10d op."""
        kind = box._type().qualified_name().rsplit(".", 1)[-1]
        if kind == "ProcessGroup":
            return self.group(c10d.ProcessGroup.unbox(box))
        if kind == "ReduceOp":
            return Constant("reduce_op", self._reduction)
        if kind == "Work":
            work = c10d.Work.unbox(box)
            number = self._works.setdefault(id(work), (self._issued, work))[0]
            self._issued = max(self._issued, number + 1)
            return Constant("work", str(number))
        return Constant("object", kind)

    def group(self, group: Any) -> Constant:
        """A process group by name; its members are stored in `groups`."""
        name = group.group_name
        if name not in self.groups:
            import torch.distributed as dist

            self.groups[name] = tuple(dist.get_process_group_ranks(group))
        return Constant("group", name)

    def named(self, arguments: Sequence[Any]) -> None:
        """Store the members of the group that a functional collective names in its last string argument."""
        name = next((value for value in reversed(arguments) if isinstance(value, str)), None)
        if name is not None and name not in self.groups:
            self.group(c10d._resolve_process_group(name))

    def waited(self, work: object) -> Constant | None:
        """The number of a work that is being waited for; None for one this step did not issue."""
        known = self._works.pop(id(work), None)
        return Constant("work", str(known[0])) if known else None

    @contextmanager
    def noting_reductions(self) -> Iterator[None]:
        """Note which reduction Python requests from a group."""
        if c10d is None:
            yield
            return
        # Releases rename methods: reduce_scatter_single was _reduce_scatter_base.
        # Taken from the class's own table: what getattr returns can't be restored, since it is unbound.
        original = {name: method for name, method in vars(c10d.ProcessGroup).items() if "reduce" in name}
        for name, method in original.items():
            setattr(c10d.ProcessGroup, name, self._noting(method))
        try:
            yield
        finally:
            for name, method in original.items():
                setattr(c10d.ProcessGroup, name, method)

    def _noting(self, method: Any) -> Any:
        @wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return method(*args, **kwargs)
            named = [a for a in (*args, *kwargs.values()) if hasattr(a, "reduceOp") or isinstance(a, c10d.ReduceOp)]
            if named:
                reduction = getattr(named[0], "reduceOp", named[0])
                self._reduction = str(getattr(reduction, "op", reduction)).rsplit(".", 1)[-1].lower()
            try:
                return method(*args, **kwargs)
            finally:
                self._reduction = "sum"

        skip_compilation(call)
        return call


def is_box(value: object) -> bool:
    """Whether a value is a TorchScript object, as c10d ops pass their groups and works.

    >>> is_box(3)
    False
    """
    return isinstance(value, torch.ScriptObject)
