"""`foretrace advise` on the command line."""

from __future__ import annotations

import json

import pytest


def test_plans_are_listed_with_how_to_apply_them(foretrace, script):
    ran = foretrace("advise", script, "--on", "h200", "--world", "1", "--json")
    assert ran.code == 0, ran.err
    fields = json.loads(ran.out)
    assert len(fields["plans"]) >= 3 and fields["simulated"] <= fields["space"]
    wrong = foretrace("advise", script, "--target", "soon")
    assert wrong.code == 2 and "is no time" in wrong.err


def test_a_target_that_no_plan_reaches_names_the_nearest_and_what_stands_in_the_way(foretrace, script):
    ran = foretrace("advise", script, "--target", "0.0001ms", "--workers", "1")
    assert ran.code == 0 and "no plan reaches 0.0001 ms: the nearest takes" in ran.out and "device work" in ran.out
    none = foretrace("advise", script, "--memory", "0.0001")
    assert none.code == 2 and "no plan fits" in none.err
    odd = foretrace("advise", script, "--world", "3", "--samples", "7", "--set", "tensor=1")
    assert odd.code == 2 and "no plan divides 7 samples between 3 GPUs" in odd.err
    unknown = foretrace("advise", script, "--set", "speed=9")
    assert unknown.code == 2 and "setting" in unknown.err


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--memory", "nan", "--memory: nan is no number"),
        ("--memory", "inf", "nothing fits in inf GiB"),
        ("--price", "nan", "--price: nan is no number"),
        ("--price", "-1", "-1 is no price of a GPU hour"),
        ("--seconds", "nan", "--seconds: nan is no number"),
        ("--set", "batch=max", "plans can't have batch=max"),
    ],
)
def test_numbers_that_are_none_are_refused(foretrace, script, option, value, said):
    ran = foretrace("advise", script, option, value)
    assert ran.code == 2 and said in ran.err
