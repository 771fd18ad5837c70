"""Ways of choosing the recordings of a suite: Foretrace's, and those of the literature to compare it with."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from foretrace.fleet.mix import FAMILY, Mix
from foretrace.fleet.selection import Choice, choose_with_parts, figures_to_fit

MAX_UPDATES = 30
"""Turns in which k-medoids settles, or ends."""


def top_by_hours(mix: Mix, size: int) -> Choice:
    """The recordings with most hours, as heavy as all."""
    chosen = sorted(np.argsort(-mix.hours, kind="stable")[:size].tolist())
    return chosen, mix.hours[chosen] * (mix.hours.sum() / mix.hours[chosen].sum())


def at_random(mix: Mix, size: int, seed: int = 0) -> Choice:
    """Recordings drawn by their hours, each as heavy as the others."""
    drawn = np.random.default_rng(seed).choice(
        len(mix.ids), min(size, len(mix.ids)), replace=False, p=mix.hours / mix.hours.sum()
    )
    return sorted(drawn.tolist()), np.full(len(drawn), mix.hours.sum() / len(drawn))


def stratified(mix: Mix, size: int) -> Choice:
    """The largest recording of each stratum, weighted by its hours: strata are the families with most device time."""
    family = mix.per_hour[:, mix.places(FAMILY)].argmax(axis=1)
    strata = sorted(set(family.tolist()), key=lambda one: -mix.hours[family == one].sum())
    chosen: list[int] = []
    for turn in range(size):
        for one in strata:
            inside = np.flatnonzero(family == one)
            inside = inside[np.argsort(-mix.hours[inside], kind="stable")]
            if turn < len(inside) and len(chosen) < size:
                chosen.append(int(inside[turn]))
    weights = np.array(
        [
            mix.hours[family == family[one]].sum() / sum(family[other] == family[one] for other in chosen)
            for one in chosen
        ]
    )
    return chosen, weights * mix.hours.sum() / weights.sum()


def k_medoids(mix: Mix, size: int) -> Choice:
    """Medoids of clusters of the mixes, each as heavy as its cluster: alternating assignment and update."""
    rows = figures_to_fit(mix)
    chosen = [int(np.argmax(mix.hours))]
    distance = ((rows - rows[chosen[0]]) ** 2).sum(axis=1)
    while len(chosen) < min(size, len(rows)):
        chosen.append(int(np.argmax(distance * mix.hours)))
        distance = np.minimum(distance, ((rows - rows[chosen[-1]]) ** 2).sum(axis=1))
    for _ in range(MAX_UPDATES):
        apart = ((rows[:, None] - rows[chosen][None]) ** 2).sum(axis=2)
        owner, before = apart.argmin(axis=1), list(chosen)
        for number in range(len(chosen)):
            inside = np.flatnonzero(owner == number)
            if len(inside):
                centre = (rows[inside] * mix.hours[inside, None]).sum(axis=0) / mix.hours[inside].sum()
                chosen[number] = int(inside[((rows[inside] - centre) ** 2).sum(axis=1).argmin()])
        if chosen == before:
            break
    return chosen, np.bincount(owner, mix.hours, len(chosen)).astype(np.float64)


def facility_location(mix: Mix, size: int) -> Choice:
    """Recordings that are nearest to all others, weighted by hours, chosen greedily; each as heavy as those near it."""
    rows = figures_to_fit(mix)
    apart = np.sqrt(((rows[:, None] - rows[None]) ** 2).sum(axis=2))
    nearest, chosen = np.full(len(rows), np.inf), list[int]()
    for _ in range(min(size, len(rows))):
        cost = (np.minimum(apart, np.minimum(nearest, apart.max())[:, None]) * mix.hours[:, None]).sum(axis=0)
        cost[chosen] = np.inf
        chosen.append(int(cost.argmin()))
        nearest = np.minimum(nearest, apart[:, chosen[-1]])
    return chosen, np.bincount(apart[:, chosen].argmin(axis=1), mix.hours, len(chosen)).astype(np.float64)


def integer_program(mix: Mix, size: int, seconds: float = 60.0) -> Choice:
    """Recordings and weights with the least sum of errors of the stated figures, by HiGHS within a time limit."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    stated, wanted = mix.stated, mix.target
    scale = mix.scale(wanted)[stated]
    rows, goal = (mix.per_hour[:, stated] / scale).T, wanted[stated] / scale
    count, figures, most = len(mix.ids), len(goal), float(mix.hours.sum())
    zeros, eye = np.zeros((figures, count)), np.eye(figures)
    matrix = np.block([[rows, zeros, -eye], [-rows, zeros, -eye]])
    limits = [LinearConstraint(matrix, -np.inf, np.concatenate([goal, -goal]))]
    limits.append(LinearConstraint(np.block([np.eye(count), -most * np.eye(count), zeros.T]), -np.inf, 0.0))
    limits.append(LinearConstraint(np.concatenate([np.zeros(count), np.ones(count), np.zeros(figures)]), 0, size))
    upper = np.concatenate([np.full(count, most), np.ones(count), np.full(figures, np.inf)])
    done = milp(
        np.concatenate([np.zeros(2 * count), np.ones(figures)]),
        integrality=np.concatenate([np.zeros(count), np.ones(count), np.zeros(figures)]),
        bounds=Bounds(0, upper),
        constraints=limits,
        options={"time_limit": seconds, "mip_rel_gap": 0.01},
    )
    if done.x is None:
        return top_by_hours(mix, size)
    chosen = np.flatnonzero(done.x[count : 2 * count] > 0.5).tolist()
    return chosen, np.asarray(done.x[chosen])


METHODS: dict[str, Callable[[Mix, int], Choice]] = {
    "exchange": choose_with_parts,
    "integer program": lambda mix, size: integer_program(mix.without_parts(), size),
    "k-medoids": lambda mix, size: k_medoids(mix.without_parts(), size),
    "facility location": lambda mix, size: facility_location(mix.without_parts(), size),
    "stratified": lambda mix, size: stratified(mix.without_parts(), size),
    "top by hours": lambda mix, size: top_by_hours(mix.without_parts(), size),
    "random": lambda mix, size: at_random(mix.without_parts(), size),
}
