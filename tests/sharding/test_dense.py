"""What a step has besides its tables."""

from functools import partial

import pytest

from foretrace.graph import Graph, OpTable
from foretrace.record.sketch import sketch
from foretrace.sharding.training_step import dense_bytes

torch = pytest.importorskip("torch")

BATCH, WIDTH, DIM, POOLING = 64, 256, 32, 5


def made(rows, sparse, optimizer):
    """A step with a table of so many rows and a dense layer."""
    table = torch.nn.EmbeddingBag(rows, DIM, mode="sum", sparse=sparse)
    model = torch.nn.Sequential(table, torch.nn.Linear(DIM, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, 1))
    update = optimizer(model.parameters())
    ids = torch.randint(rows, (BATCH, POOLING))

    def step():
        update.zero_grad()
        model(ids).sum().backward()
        update.step()

    return step


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.1)


@pytest.mark.parametrize(("sparse", "optimizer"), [(True, sgd), (False, sgd), (False, adam)])
def test_tables_their_gradients_and_what_is_kept_of_them_are_no_part_of_it(sparse, optimizer):
    few, many = (dense_bytes(sketch(partial(made, rows, sparse, optimizer))) for rows in (1000, 100_000))
    weights = (DIM + 2) * WIDTH * 4
    assert few == many
    assert few > weights * (4 if optimizer is adam else 2)
    assert few < weights * 4 + 10 * BATCH * WIDTH * 4


def test_a_step_that_says_nothing_of_memory_has_none_that_is_known():
    assert dense_bytes(Graph(OpTable.of([]))) is None
