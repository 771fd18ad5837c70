"""Names that a benchmark may call."""

from __future__ import annotations

import pytest
import torch

from foretrace.graph.operators import NAMESPACES, REFUSED, is_identifier, operator_path
from foretrace.replay.allowed import packages


@pytest.mark.parametrize("name", ["aten::mm", "prims::convert_element_type", "c10d::allreduce_", "aten::__and__"])
def test_operators_of_pytorch_are_written_as_they_are_called(name: str) -> None:
    assert operator_path(name, "default") == f"{name.replace('::', '.')}.default"


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_operators_that_open_files_or_print_are_not(name: str) -> None:
    assert operator_path(name, "default") is None


def test_a_custom_namespace_is_called_once_the_user_names_it() -> None:
    assert operator_path("fbgemm::jagged_to_dense", "default") is None
    assert operator_path("fbgemm::jagged_to_dense", "default", more=packages(["fbgemm=fbgemm_gpu"])) is not None


def test_no_operator_of_the_allowed_namespaces_takes_a_path() -> None:
    for namespace in NAMESPACES:
        for name in dir(getattr(torch.ops, namespace)):
            packet = getattr(getattr(torch.ops, namespace), name)
            for overload in packet.overloads() if hasattr(packet, "overloads") else ():
                arguments = {argument.name for argument in getattr(packet, overload)._schema.arguments}
                if arguments & {"filename", "path", "file"}:
                    assert operator_path(f"{namespace}::{name}", overload) is None


@pytest.mark.parametrize("text", ["def", "None", "__x", "a.b", "a-b", "1a", "x" * 129, "naïve", "a\n"])
def test_a_word_is_nothing_that_python_gives_a_meaning_to(text: str) -> None:
    assert not is_identifier(text)
