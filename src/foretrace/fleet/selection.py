"""Choosing few recordings, with weights, whose mix is that of a fleet.

Recordings are exchanged one by one as long as that brings the weighted mix closer to the fleet's, starting from a
greedy choice and again from where that ends (an iterated local search).
"""

from __future__ import annotations

import numpy as np

from foretrace.fleet.mix import FAMILY, STEERING, Mix
from foretrace.graph.tables import Floats

MAX_PASSES, POLISHES = 30, 4
"""Rounds of exchanges by least squares, and of those that are weighed exactly: they end by themselves before."""
RESTARTS, LEAVE, GOOD = 40, 2, 5e-3
"""New starts, the part of the members that leaves for one, and what is left of errors that none is made for."""
LARGEST = 0.5
"""How much the largest error of a figure counts, relative to the device time in a wrong family."""
TRIED = 24
"""Recordings that are weighed exactly for each place in a suite, of those that promise most."""
SCREENED, WEIGHED, TURNS, HOPEFUL = 400, 3, 6, 1.3
"""Of recordings that promise most by least squares, those that are tried at once, and of these those that are weighed
exactly; how often errors are weighted anew for that, and how many times the least so far one may leave for that."""
PART_COST = 1e-3
"""What a part counts that stands for a whole recording: it runs less of the fleet's code."""
ENOUGH = 0.01
"""The largest error with which whole recordings need no parts beside them."""
MAX_CANDIDATES = 3000
"""Recordings that exchanges look at: of more, those with most hours and those that are most unlike others."""

Choice = tuple[list[int], Floats]
"""Places of recordings, and the hours that each stands for."""


def choose(mix: Mix, size: int, start: list[int] | None = None, restarts: int = RESTARTS) -> Choice:
    """Recordings and their weights: a greedy choice, improved by exchanges. ``start`` are chosen already.

    Where exchanges end, some members are exchanged for others that are drawn, and it goes on from there; what is best
    stays. The draws are the same each time.
    """
    problem, draw = _MixFit(mix), np.random.default_rng(0)
    best = problem.improved(problem.completed(list(start or []), size))
    error = problem.weighed(best)[1]
    for _ in range(restarts):
        if error < GOOD or len(best) == len(mix.ids) or len(best) < 3:
            break
        other = problem.polished(problem.perturbed(best, draw))
        found = problem.weighed(other)[1]
        if found < error * (1 - 1e-3):
            best, error = other, found
    return sorted(best), problem.weights(sorted(best))


def choose_with_parts(mix: Mix, size: int) -> Choice:
    """Whole recordings, where they have the fleet's mix; else also parts of recordings, as far as these help."""
    whole = mix.without_parts()
    chosen, weights = choose(whole, size)
    if len(whole.ids) == len(mix.ids) or largest_error(mix, chosen, weights) < ENOUGH:
        return chosen, weights
    return min(
        ((chosen, weights), choose(mix, size, chosen)), key=lambda choice: largest_error(mix, choice[0], choice[1])
    )


def figures_to_fit(mix: Mix) -> Floats:
    """What recordings are chosen by: the figures of each in an hour, relative to the fleet's."""
    return np.asarray(mix.per_hour * _relative(mix))


def _relative(mix: Mix) -> Floats:
    """The factor of each figure: one over the fleet's, less for those that only steer."""
    return np.asarray(np.where(mix.stated, 1.0, STEERING) / mix.scale(mix.target))


class _MixFit:
    """Least squares of a mix, each figure relative to the fleet's, with weights that are not negative."""

    def __init__(self, mix: Mix) -> None:
        wanted, factor = mix.target, _relative(mix)
        self.mix, self.wanted, self.whole_count = mix, wanted, mix.whole
        self.rows = figures_to_fit(mix)
        self.goal: Floats = wanted * factor
        self.gram: Floats = np.einsum("ij,ij->i", self.rows, self.rows)
        self.toward: Floats = self.rows @ self.goal
        self.whole = float(self.goal @ self.goal)
        self.candidates = self._candidates()
        scale = mix.scale(wanted)[mix.stated]
        self.stated_rows: Floats = mix.per_hour[:, mix.stated] / scale
        self.stated_goal: Floats = wanted[mix.stated] / scale
        families = np.array([figure.kind == FAMILY for figure in mix.figures])[mix.stated]
        device = float(wanted[mix.places(FAMILY)].sum()) or 1.0
        self.cost: Floats = np.where(families, scale / device, 0.0) + 0.1 / len(scale)
        """What the error of each stated figure counts."""

    def _candidates(self) -> np.ndarray:
        """Places that may be chosen: all, or of many those with most hours and a spread of the others."""
        count = len(self.mix.ids)
        if count <= MAX_CANDIDATES:
            return np.arange(count)
        weighty = np.argsort(-self.mix.hours, kind="stable")[: MAX_CANDIDATES // 2]
        centre = self.goal / max(float(self.mix.hours.sum()), 1e-9)
        unlike = ((self.rows - centre) ** 2).sum(axis=1)
        spread = np.argsort(unlike, kind="stable")[:: max(2 * count // MAX_CANDIDATES, 1)]
        return np.unique(np.concatenate([weighty, spread]))

    def error(self, chosen: list[int]) -> float:
        """The squared error that is left with the best weights."""
        return self._solved(chosen)[1]

    def _solved(self, chosen: list[int]) -> tuple[Floats, float]:
        """Weights that are not negative and the squared error, by an active set on the normal equations."""
        part = self.rows[chosen]
        gram, toward = part @ part.T, self.toward[chosen]
        active = np.ones(len(chosen), bool)
        weights = np.zeros(len(chosen))
        for _ in range(2 * len(chosen)):
            places = np.flatnonzero(active)
            found = np.linalg.lstsq(gram[np.ix_(places, places)], toward[places], rcond=None)[0]
            if (found > 0).all():
                weights[:] = 0.0
                weights[places] = found
                break
            active[places[np.argmin(found)]] = False
        return weights, float(self.whole - 2 * weights @ toward + weights @ gram @ weights)

    def completed(self, chosen: list[int], size: int) -> list[int]:
        """Greedy choice: recordings added one by one up to ``size``."""
        while len(chosen) < min(size, len(self.mix.ids)):
            chosen = [*chosen, self.best_addition(chosen)]
        return chosen

    def perturbed(self, chosen: list[int], draw: np.random.Generator) -> list[int]:
        """Recordings with some exchanged for others that are drawn."""
        leave = draw.choice(len(chosen), max(len(chosen) // LEAVE, 1), replace=False).tolist()
        free = self.candidates[~np.isin(self.candidates, chosen)]
        enter = draw.choice(free, min(len(leave), len(free)), replace=False).tolist()
        stay = [one for place, one in enumerate(chosen) if place not in leave[: len(enter)]]
        return [*stay, *map(int, enter)]

    def improved(self, chosen: list[int]) -> list[int]:
        """Recordings exchanged by least squares, then by what is left after the best weights."""
        return self.polished(self.exchanged(chosen))

    def best_addition(self, chosen: list[int]) -> int:
        """The recording whose addition leaves the least error."""
        return min(self._promising(chosen), key=lambda place: (self.error([*chosen, place]), place))

    def _promising(self, chosen: list[int], most: int = TRIED) -> list[int]:
        """Recordings that would reduce the error most, were weights allowed to be negative."""
        free = self.candidates[~np.isin(self.candidates, chosen)]
        rows = self.rows[free]
        residual, gram = self.goal, self.gram[free]
        if chosen:
            part = self.rows[chosen]
            weights, _ = self._solved(chosen)
            residual = self.goal - weights @ part
            basis = np.linalg.qr(part.T)[0]
            gram = gram - ((rows @ basis) ** 2).sum(axis=1)
        gain = np.maximum(rows @ residual, 0.0) ** 2 / np.maximum(gram, 1e-12)
        return [int(place) for place in free[np.argsort(-gain, kind="stable")[:most]]]

    def exchanged(self, chosen: list[int]) -> list[int]:
        """Recordings exchanged for others as long as that reduces the error."""
        best = self.error(chosen)
        for _ in range(MAX_PASSES):
            improved = False
            for place in list(chosen):
                rest = [other for other in chosen if other != place]
                new = self.best_addition(rest)
                error = self.error([*rest, new])
                if error < best * (1 - 1e-6):
                    chosen, best, improved = [*rest, new], error, True
            if not improved:
                break
        return chosen

    def polished(self, chosen: list[int]) -> list[int]:
        """Recordings exchanged as long as that reduces what `weighed` says is left, which takes longer to find out."""
        best = self.weighed(chosen)[1]
        for _ in range(POLISHES):
            improved = False
            for place in list(chosen):
                rest = [other for other in chosen if other != place]
                options = [(self.weighed([*rest, new])[1], new) for new in self.screened(rest, best)]
                error, new = min(options, default=(best, place))
                if error < best * (1 - 1e-3):
                    chosen, best, improved = [*rest, new], error, True
            if not improved:
                break
        return chosen

    def screened(self, chosen: list[int], best: float = np.inf) -> list[int]:
        """Recordings that, added to some, leave the least of what `weighed` counts, about: all are tried at once.

        None that leaves far more than ``best``. Weights are those of least squares, in which figures with large errors
        count more from turn to turn.
        """
        free = np.array(self._promising(chosen, SCREENED))
        rows, goal = self.stated_rows, self.stated_goal
        parts = np.concatenate(
            [np.broadcast_to(rows[chosen], (len(free), len(chosen), len(goal))), rows[free, None]], 1
        )
        figures = np.full((len(free), len(goal)), 1.0 / len(goal))
        left = np.full(len(free), np.inf)
        for _ in range(TURNS):
            weighted = parts * figures[:, None]
            gram = weighted @ parts.transpose(0, 2, 1) + 1e-12 * np.eye(len(chosen) + 1)
            weights = np.maximum(np.linalg.solve(gram, (weighted @ goal)[..., None])[..., 0], 0.0)
            error = np.abs((weights[:, None] @ parts)[:, 0] - goal)
            left = np.minimum(
                left, error @ self.cost + LARGEST * error.max(axis=1) + PART_COST * (free >= self.whole_count)
            )
            figures *= error + 1e-6
            figures /= figures.sum(axis=1, keepdims=True)
        left += PART_COST * sum(place >= self.whole_count for place in chosen)
        order = np.argsort(left, kind="stable")[:WEIGHED]
        return [int(place) for place in free[order[left[order] < HOPEFUL * best]]]

    def weights(self, chosen: list[int]) -> Floats:
        """The weights of recordings, in hours."""
        return self.weighed(chosen)[0]

    def weighed(self, chosen: list[int]) -> tuple[Floats, float]:
        """The weights with the least errors, and what is left of these, by a linear program.

        Counted are the device time in a wrong family, the largest error of a stated figure, and a little of all.
        """
        from scipy.optimize import linprog

        rows, goal, count, figures = self.stated_rows[chosen].T, self.stated_goal, len(chosen), len(self.stated_goal)
        eye, none = np.eye(figures), np.zeros((figures, 1))
        matrix = np.block([[rows, -eye, none], [-rows, -eye, none], [np.zeros((figures, count)), eye, none - 1.0]])
        limit = np.concatenate([goal, -goal, np.zeros(figures)])
        done = linprog(np.concatenate([np.zeros(count), self.cost, [LARGEST]]), A_ub=matrix, b_ub=limit, method="highs")
        cost = PART_COST * sum(place >= self.whole_count for place in chosen)
        if not done.success:
            weights, left = self._solved(chosen)
            return weights, left + cost
        return np.asarray(done.x[:count]), float(done.fun) + cost


def weights_of(mix: Mix, chosen: list[int]) -> Floats:
    """The best weights of recordings that are chosen already."""
    return _MixFit(mix).weights(chosen)


def largest_error(mix: Mix, chosen: list[int], weights: Floats) -> float:
    """The largest error of a stated figure."""
    wanted = mix.target
    return float((np.abs(weights @ mix.per_hour[chosen] - wanted) / mix.scale(wanted))[mix.stated].max())


def exchange(mix: Mix, chosen: list[int], within: float, most: int) -> list[int]:
    """The fewest exchanges, up to so many, that bring a suite's mix within a limit of the fleet's.

    First none, with new weights; then one after the other, each the one that helps most.
    """
    problem, now = _MixFit(mix), list(chosen)
    best, error = now, largest_error(mix, sorted(now), problem.weights(sorted(now)))
    for _ in range(most):
        if error <= within:
            break
        options = []
        for place in now:
            if place in chosen:  # what was brought in stays
                rest = [other for other in now if other != place]
                for new in {problem.best_addition(rest), *problem.screened(rest)}:
                    options.append((problem.weighed([*rest, new])[1], [*rest, new]))
        if not options:
            break
        now = min(options)[1]
        found = largest_error(mix, sorted(now), problem.weights(sorted(now)))
        if found < error:
            best, error = now, found
    return sorted(best)
