import pytest

from foretrace.cost_models.kernels.families import FAMILIES, CallContext
from foretrace.graph import Op, Tensor
from foretrace.platform.device import Device

SOFTMAX = FAMILIES["softmax"]
CONTEXT = CallContext(Device.named("h200"))


def way(shape: tuple[int, ...], dim: int = -1, dtype: str = "float32") -> float:
    features = SOFTMAX.describe(Op("aten::_softmax", (Tensor(shape, dtype), dim, False)), CONTEXT).features
    return features[SOFTMAX.columns.index("way")]


@pytest.mark.parametrize(("row", "held"), [(2048, 0), (2049, 1), (9216, 1), (9220, 2), (9217, 3), (100_000, 3)])
def test_the_longer_a_row_the_farther_away_it_is_held(row: int, held: int):
    assert way((64, row)) == held


def test_rows_whose_elements_lie_apart_are_walked_across():
    assert way((64, 128), dim=0) == 4


def test_few_long_columns_wait_for_memory():
    across = SOFTMAX.describe(Op("aten::_softmax", (Tensor((40000, 600), "float32"), 0, False)), CONTEXT).work
    assert across.us(CONTEXT.device) > 10 * across._replace(round_trips=0.0).us(CONTEXT.device)


def test_a_number_is_a_row_of_one():
    assert way(()) == 0
