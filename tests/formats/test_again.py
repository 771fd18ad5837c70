"""Arguments that are read again where they did not come along."""

import pickle
from pathlib import Path

import pytest

from foretrace.formats.chakra import read_chakra, write_chakra
from foretrace.formats.execution_trace.read import Again, read_execution_trace
from foretrace.formats.join import join
from foretrace.graph import Graph, Job
from tests.formats.execution_traces import step, trace, write


def arguments(graph: Graph) -> list[object]:
    return [(op.name, op.args, op.kwargs, op.outputs) for op in graph.ops]


@pytest.fixture
def structure(tmp_path: Path) -> Graph:
    return read_execution_trace(write(tmp_path / "et.json.gz", trace(step(), "1.1.1-chakra.0.0.4")))


def test_an_execution_trace_sent_to_another_process_still_has_its_arguments(structure: Graph):
    sent = pickle.loads(pickle.dumps(structure))
    assert isinstance(sent.ops.detail, Again)
    assert arguments(sent) == arguments(structure)


def test_so_has_one_that_was_joined_with_a_profile(structure: Graph):
    joined = join(structure, structure)
    assert arguments(pickle.loads(pickle.dumps(joined))) == arguments(structure)


def test_so_has_a_chakra_trace(structure: Graph, tmp_path: Path):
    [path] = write_chakra(Job([structure]), tmp_path / "chakra")
    graph = read_chakra(path)
    assert arguments(pickle.loads(pickle.dumps(graph))) == arguments(graph)


def test_the_file_is_read_once_and_only_when_asked(structure: Graph):
    reads = []

    def read(path: Path) -> Graph:
        reads.append(path)
        return structure

    again = Again(read, Path("et.json"))
    assert reads == []
    assert [again(row).name for row in (2, 3)] == ["aten::linear", "aten::addmm"]
    assert len(reads) == 1
