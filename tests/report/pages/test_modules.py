from __future__ import annotations

from foretrace.report.pages.modules import module_tree


def row(name: str, device: float, host: float = 1.0) -> dict[str, object]:
    return {"name": name, "device_ms": device, "host_ms": host}


def test_a_model_that_is_one_module_is_shown_as_what_is_inside():
    rows = [row(f"Net.layer.{i}.{part}", 1.0) for i in range(5) for part in ("mlp", "attention")]
    tree = module_tree(rows)
    assert [branch["name"] for branch in tree] == [f"Net.layer.{i}" for i in range(5)]
    assert [child["name"] for child in tree[0]["children"]] == ["mlp", "attention"]


def test_a_module_keeps_its_own_time_apart_from_that_of_those_inside():
    tree = module_tree([row("a", 9.0), row("a.b", 1.0), row("c", 40.0)])
    inside = next(branch for branch in tree if branch["name"] == "a")["children"]
    assert {one["name"]: one["value"] for one in inside} == {"b": 2.0, "(itself)": 10.0}


def test_the_hosts_part_of_a_module_is_that_of_all_inside():
    (branch,) = module_tree([row("a.b.c", 5.0, 4.0)])
    assert (branch["name"], branch["value"], branch["host"]) == ("a.b.c", 9.0, 4.0)
