"""Signatures of PyTorch operators, as execution traces write them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple


class Parameter(NamedTuple):
    """One parameter of an operator: its name, its type without alias marks, and whether it goes by keyword only."""

    name: str
    type: str
    keyword: bool


class Signature(NamedTuple):
    """What an operator is called and what it takes."""

    overload: str
    parameters: tuple[Parameter, ...]


@lru_cache(maxsize=4096)
def signature(schema: str) -> Signature:
    """The signature a schema text describes; an empty one for an empty text.

    >>> s = signature("aten::sum.dim_IntList(Tensor self, int[1]? dim, *, ScalarType? dtype=None) -> Tensor")
    >>> s.overload, [p.name for p in s.parameters], s.parameters[2]
    ('dim_IntList', ['self', 'dim', 'dtype'], Parameter(name='dtype', type='ScalarType?', keyword=True))
    """
    head, _, rest = schema.partition("(")
    parameters: list[Parameter] = []
    keyword = False
    for text in split_outside_brackets(rest):
        declared = text.partition("=")[0].strip()
        if declared == "*":
            keyword = True
        elif declared:
            kind, _, name = declared.rpartition(" ")
            parameters.append(Parameter(name, kind, keyword))
    return Signature(head.partition(".")[2], tuple(parameters))


def split_outside_brackets(text: str) -> Iterator[str]:
    """The parts of a text between its commas, those in brackets not counted, up to a bracket that closes nothing.

    >>> list(split_outside_brackets("Int,Tuple[Int,Tensor(float)]"))
    ['Int', 'Tuple[Int,Tensor(float)]']
    """
    depth = start = 0
    for at, letter in enumerate(text):
        if letter in "([":
            depth += 1
        elif letter in ")]":
            depth -= 1
            if depth < 0:
                yield text[start:at]
                return
        elif letter == "," and depth == 0:
            yield text[start:at]
            start = at + 1
    yield text[start:]
