from __future__ import annotations

import json

import pytest

from foretrace.graph import ForetraceError
from foretrace.platform.fabric import FABRICS, LINKS, Curve, Fabric, Links, fabrics
from tests.narrowing import present


def curve(**changes):
    return Curve(**{
        "kind": "all_reduce", "ranks": 2, "nodes": 1, "latency_us": 10.0, "gbps": 100.0, "bend": 1.0,
        "knots": ((1024.0, 1.0),), "spread": 0.02, **changes,
    })  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"latency_us": 0.0}, r"'curves\[0\].latency_us' holds 0.0"),
        ({"gbps": -1.0}, r"'curves\[0\].gbps' holds -1.0"),
        ({"knots": ((1024.0,),)}, r"'curves\[0\].knots\[0\]' holds \[1024.0\]"),
        ({"ranks": 1.5}, r"'curves\[0\].ranks' holds 1.5"),
        ({"ranks": 1}, r"'curves\[0\]' has one rank"),
        ({"nodes": 3}, r"'curves\[0\]' has 2 ranks on 3 nodes"),
        ({"knots": ()}, r"'curves\[0\]' has no knots"),
        ({"knots": ((2048.0, 1.0), (1024.0, 1.0))}, r"'curves\[0\]' has knots that do not rise"),
        ({"kind": "shout"}, r"'curves\[0\]' is of 'shout', which is no collective"),
    ],
)
def test_a_damaged_fabric_says_which_field(tmp_path, change, said):
    Fabric("two", (curve(**change),), "made up").write(tmp_path / "fabric.json")
    with pytest.raises(ForetraceError, match=rf"fabric\.json: the field {said}"):
        Fabric.read(tmp_path / "fabric.json")


@pytest.mark.parametrize("path", sorted(LINKS.glob("*.json")), ids=lambda path: path.stem)
def test_shipped_links_have_the_name_of_their_file_and_a_source(path):
    links = Links.read(path)
    assert links.name == path.stem and links.provenance
    assert links.inside.kind in ("nvswitch", "nvlink", "pcie") and links.inside.pair_gbps <= links.inside.gbps


@pytest.mark.parametrize("path", sorted(FABRICS.glob("*.json")), ids=lambda path: path.stem)
def test_shipped_fabrics_have_curves_links_and_a_source(path):
    fabric = Fabric.named(path.stem)
    assert fabric.name == path.stem and fabric.curves
    assert "nccl-tests: " in fabric.provenance
    assert fabric.links == Links.named(present(fabric.links).name), "as in the file of the links"


def test_the_published_machines_are_there():
    assert {
        "a100-8x-nvswitch",
        "h100-8x",
        "h100-2x8-p5",
        "h100-2x8-a3mega",
        "v100-8x",
        "v100-2x-pcie",
        "b200-2x8",
    } <= set(fabrics())


def test_a_name_that_nobody_knows_is_answered_with_those_that_are_known():
    with pytest.raises(ForetraceError, match=r"no fabric is called 'tpu'\. Known are: .*h100-8x"):
        Fabric.named("tpu")


def test_links_of_one_s_own_are_a_fabric_too(tmp_path):
    facts = json.loads((LINKS / "h100-nvswitch.json").read_text())
    facts["network"]["gbit"] = 100
    path = tmp_path / "ours.json"
    path.write_text(json.dumps(facts))
    assert present(present(Fabric.read(path).links).network).gbps == 100.0


@pytest.mark.parametrize(
    ("part", "field", "value", "said"),
    [
        ("inside", "gbps", 0, "'inside.gbps' holds 0"),
        ("network", "nics", 1.5, "'network.nics' holds 1.5"),
        ("inside", "reduces", "yes", "'inside.reduces' holds 'yes'"),
        ("inside", "kind", "magic", "'inside.kind' holds 'magic'"),
        ("network", "cards", 8, "'network.cards' means nothing"),
    ],
)
def test_a_damaged_file_says_which_field(tmp_path, part, field, value, said):
    facts = json.loads((LINKS / "h100-nvswitch.json").read_text())
    facts[part][field] = value
    path = tmp_path / "ours.json"
    path.write_text(json.dumps(facts))
    with pytest.raises(ForetraceError, match=f"ours.json: the field {said}"):
        Fabric.read(path)
