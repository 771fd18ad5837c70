"""Of trees and nets, each op's calls are answered by what did best on calls that neither had seen."""

import numpy as np
import pytest

from foretrace.costs.estimators import Blend, ResidualTrees
from foretrace.costs.nets import ResidualNet
from foretrace.costs.rows import Rows
from foretrace.costs.shares import Shares, mixed


@pytest.fixture
def rows() -> Rows:
    """Calls of three ops that all take 10 us."""
    ops = np.repeat([0.0, 1.0, 8.0], 20)
    return Rows(np.stack([ops, np.arange(60.0)], 1), np.zeros(60), np.ones(60), np.full((60, 2), 10.0), [])


def test_who_was_off_least_answers(rows):
    op = rows.features[:, :1]
    trees = np.repeat(np.where(op == 0, 10.0, np.where(op == 1, 20.0, 8.0)), 2, axis=1)
    net = np.repeat(np.where(op == 0, 30.0, np.where(op == 1, 10.0, 12.5)), 2, axis=1)
    shares = Shares.best(rows, trees, net)
    assert dict(zip(shares.ops, shares.trees)) == {0.0: 1.0, 1.0: 0.0, 8.0: 0.5}
    np.testing.assert_allclose(mixed(trees, net, shares.of(rows)), rows.us)


class Said:
    """Says one time of every call, and counts what it is asked."""

    def __init__(self, us: float) -> None:
        self.us, self.asked = us, 0

    def predict_both(self, rows: Rows) -> np.ndarray:
        self.asked += len(rows)
        return np.full((len(rows), 2), self.us)


def test_a_blend_asks_only_whom_it_needs(rows):
    blend = Blend()
    blend.shares_ = Shares(np.array([0.0, 1.0]), np.array([1.0, 0.0]))
    blend.trees_, blend.net_ = Said(4.0), Said(9.0)
    np.testing.assert_allclose(blend.predict_both(rows)[::20, 0], [4.0, 9.0, 6.0])
    assert (blend.trees_.asked, blend.net_.asked) == (40, 40)


def test_each_is_fitted_on_the_calls_that_it_has_a_share_in(rows, monkeypatch):
    seen = {}
    for kind in (ResidualTrees, ResidualNet):
        monkeypatch.setattr(kind, "fit", lambda self, rows, *_: seen.update({type(self): set(rows.features[:, 0])}))
    rows.kernels = [[]] * len(rows)
    Blend().fit(rows, None, 1, 2, Shares(np.array([0.0, 1.0]), np.array([1.0, 0.0])))
    assert seen == {ResidualTrees: {0.0, 8.0}, ResidualNet: {1.0, 8.0}}


def test_shares_are_read_as_they_were_written_and_are_half_where_none_were(rows):
    shares = Shares(np.array([0.0, 8.0]), np.array([1.0, 0.0]))
    assert Shares.from_arrays(shares.arrays()).of(rows).tolist() == shares.of(rows).tolist()
    assert Shares.from_arrays(Shares().arrays()).of(rows).tolist() == [0.5] * len(rows)


@pytest.mark.parametrize("trees", [[1.5, 0.0], [np.nan, 0.0], [0.5]])
def test_what_is_no_share_is_refused(trees):
    with pytest.raises(ValueError, match=r"shares\.trees"):
        Shares.from_arrays({"shares.ops": np.array([0.0, 1.0]), "shares.trees": np.array(trees)})
