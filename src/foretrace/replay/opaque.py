"""Process groups and reductions: arguments that no literal can stand for, so that each becomes a variable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from foretrace.graph import Constant
from foretrace.replay.literals import Name, NotWritableError
from foretrace.replay.plan import Argument

REDUCTIONS = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor")


class Opaque:
    """Variables for the groups and reductions that calls name.

    >>> opaque = Opaque({"tp": (0, 1)})
    >>> opaque.named([Constant("group", "tp"), Constant("reduce_op", "sum")])
    ['group_0', 'reduce_sum']
    >>> list(opaque.lines())
    ["group_0 = group('tp')", "reduce_sum = reduction('sum')"]
    """

    def __init__(self, groups: Mapping[str, tuple[int, ...]]) -> None:
        self._members = groups
        self._groups: dict[str, Name] = {}
        self._by_text: dict[str, Name] = {}
        self._reductions: dict[str, Name] = {}

    def named(self, value: Argument, functional: bool = False) -> Argument:
        """The argument with its groups and reductions as variables; ``functional`` calls name groups in plain text."""
        if isinstance(value, Constant):
            return self._constant(value)
        if isinstance(value, (list, tuple)):
            return [self.named(item, functional) for item in value]
        if functional and isinstance(value, str) and not isinstance(value, Name) and value in self._members:
            number = len(self._by_text)
            return self._by_text.setdefault(value, Name(f"group_name_{number}"))
        return value

    def _constant(self, value: Constant) -> Argument:
        if value.kind == "group":
            if value.value not in self._members:
                raise NotWritableError("a process group whose members nobody knows")
            return self._groups.setdefault(value.value, Name(f"group_{len(self._groups)}"))
        if value.kind == "reduce_op":
            if value.value not in REDUCTIONS:
                raise NotWritableError(f"a reduction {value.value!r}")
            return self._reductions.setdefault(value.value, Name(f"reduce_{value.value}"))
        return value

    @property
    def words(self) -> set[str]:
        """Functions of the harness that make them."""
        made = {"group": self._groups, "group_name": self._by_text, "reduction": self._reductions}
        return {word for word, variables in made.items() if variables}

    def lines(self) -> Iterator[str]:
        """What makes the variables."""
        yield from (f"{name} = group({str(text)!r})" for text, name in self._groups.items())
        yield from (f"{name} = group_name({str(text)!r})" for text, name in self._by_text.items())
        yield from (f"{name} = reduction({text!r})" for text, name in self._reductions.items())
