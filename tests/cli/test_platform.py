from __future__ import annotations

import json
import re

import pytest

from foretrace.cost_models.kernels.exact import ExactTimes, TimedCall
from foretrace.platform.fabric import Fabric
from foretrace.platform.platform import VERSION
from tests.machines import platform_folder
from tests.narrowing import present

LOG = """# Collective test starting: all_reduce_perf
# nThread 1 nGpus 2 minBytes 8 maxBytes 134217728 step: 2(factor)
#  Rank  0 Group  0 Pid  10563 on node-1 device  0 [0000:06:00] NVIDIA A100
#  Rank  1 Group  0 Pid  10564 on node-1 device  1 [0000:09:00] NVIDIA A100
#  size   count   type   redop    root   time   algbw   busbw #wrong   time   algbw   busbw #wrong
   1024      256   float     sum     -1   36.0    0.03    0.05      0   35.77    0.03    0.05      0
   1048576  262144 float     sum     -1   74.8   14.02   24.54    N/A   76.17   13.77   24.09    N/A
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return platform_folder(tmp_path / "foretrace" / "platforms" / "mine", without=())


def test_the_list_holds_the_shipped_ones_the_user_s_own_and_the_machine_at_hand(foretrace, mine):
    platform_folder(mine.parent / "broken").joinpath("platform.json").write_text('{"version": 1}')
    shown = foretrace("platform", "list").out
    assert re.search(r"cpu .*the CPU of this machine, not calibrated", shown) and "h200" in shown and "mine" in shown
    assert re.search(r"broken .*the field 'name' is missing", shown)
    found = json.loads(foretrace("platform", "list", "--json").out)["platforms"]
    assert [one["name"] for one in found] == ["broken", "cpu", "h200", "mine"]


def test_the_list_holds_the_shipped_fabrics_with_what_they_were_measured_on(foretrace, request):
    shown = foretrace("platform", "list").out
    assert re.search(r"h100-2x8-p5 +16 ranks on 2 nodes +8 ", shown)
    assert re.search(r"h100-nvswitch +not measured +8 ", shown)
    words = json.loads(foretrace("platform", "list", "--json").out)["fabrics"]
    page = (request.config.rootpath / "docs" / "platform.md").read_text()
    assert [one["name"] for one in words if f"`{one['name']}`" not in page] == []
    assert [word for word in words[0] if f"`{word}`" not in page] == []


def test_a_platform_is_shown_with_its_parts_and_the_errors_of_its_models(foretrace, mine):
    ran = foretrace("platform", "show", "mine")
    assert ran.code == 0, ran.err
    for words in ("mine: made up", "torch 2.11, driver 580", "10 SMs at 1,000 MHz", "80 %", "matrix", "2.1 %"):
        assert words in ran.out
    assert re.search(r"aten::mm\s+12\n", ran.out) and "all_reduce" in ran.out


@pytest.mark.parametrize("part", ["device", "host", "fabric"])
def test_what_was_not_measured_is_shown_as_missing(foretrace, tmp_path, part):
    folder = platform_folder(tmp_path / "half", without=(part,))
    ran = foretrace("platform", "show", folder)
    assert ran.code == 0, ran.err
    assert re.search(rf"{part} +none", ran.out)
    assert json.loads(foretrace("platform", "show", folder, "--json").out)[part] is None


def test_json_has_the_documented_fields(foretrace, mine, request):
    words = json.loads(foretrace("platform", "show", "mine", "--json").out)
    page = (request.config.rootpath / "docs" / "platform.md").read_text()
    assert [word for word in words if f"`{word}`" not in page] == []
    assert words["device"]["reached"] == {"float32": 0.8, "memory": 0.8}
    assert words["host"]["calls"]["aten::mm"] == 12.0
    assert words["families"]["matrix"]["gmae"] == 0.021


def test_calls_that_were_timed_as_they_are_are_counted(foretrace, mine):
    ExactTimes({"one": TimedCall.as_recorded([("k", 4.0)])}).write(mine / "models")
    assert re.search(r"exact +1 call +of measured steps", foretrace("platform", "show", "mine").out)
    (mine / "models" / "exact.json.gz").write_bytes(b"damaged")
    ran = foretrace("platform", "show", "mine")
    assert ran.code == 2 and "exact.json.gz does not hold timed calls" in ran.err


def test_a_figure_that_is_zero_on_one_platform_is_compared_without_a_ratio(foretrace, mine, tmp_path):
    free = platform_folder(tmp_path / "free", us=0.0)
    words = json.loads(foretrace("platform", "compare", free, "mine", "--json").out)
    (call,) = [row for row in words["figures"] if row["name"] == "aten::mm"]
    assert call["values"] == [0.0, 12.0] and call["ratio"] is None
    assert "nan" not in foretrace("platform", "compare", free, "mine").out


def test_two_platforms_are_compared_figure_by_figure(foretrace, mine, tmp_path):
    slow = platform_folder(tmp_path / "slow", us=60.0)
    assert re.search(r"host +aten::mm +12 +120 +us +10\n", foretrace("platform", "compare", "mine", slow).out)
    words = json.loads(foretrace("platform", "compare", "mine", slow, "--json").out)
    ratios = {row["name"]: row["ratio"] for row in words["figures"]}
    assert words["platforms"] == ["mine", "slow"]
    assert ratios["aten::mm"] == 10.0 and ratios["processors"] == 1.0
    assert not any("all_reduce" in name for name in ratios), "only one of them has a fabric"


def test_logs_of_nccl_tests_make_a_fabric(foretrace, mine, tmp_path):
    (tmp_path / "nccl.log").write_text(LOG)
    ran = foretrace("platform", "fabric", "--from", tmp_path / "nccl.log", "--out", tmp_path / "new")
    assert ran.code == 0, ran.err
    fabric = Fabric.read(tmp_path / "new" / "fabric.json")
    assert [(curve.kind, curve.ranks, curve.nodes) for curve in fabric.curves] == [("all_reduce", 2, 1)]
    assert "nccl.log: 2 x NVIDIA A100" in fabric.provenance
    assert "all_reduce" in foretrace("platform", "show", tmp_path / "new").out


def test_a_fabric_is_shown_with_its_links_and_what_was_measured(foretrace):
    shown = foretrace("platform", "show", "h100-2x8-p5").out
    for words in (
        "8 H100 SXM5",
        "450 GB/s",
        "in-network reduction",
        "32 NICs of 100 Gb/s",
        "all_reduce",
        "awsome-distributed",
    ):
        assert words in shown
    assert "Collectives" not in foretrace("platform", "show", "v100-pcie").out
    words = json.loads(foretrace("platform", "show", "h100-8x", "--json").out)
    assert words["links"]["inside"]["reduces"] and "all_reduce" in {one["kind"] for one in words["curves"]}


def test_links_are_stored_with_the_fabric(foretrace, tmp_path):
    (tmp_path / "nccl.log").write_text(LOG)
    words = ["--from", tmp_path / "nccl.log", "--out", tmp_path / "new", "--links"]
    ran = foretrace("platform", "fabric", *words, "a100-nvswitch")
    assert ran.code == 0, ran.err
    assert present(Fabric.read(tmp_path / "new" / "fabric.json").links).gpu == "A100 SXM4"
    ran = foretrace("platform", "fabric", *words, "a1000")
    assert ran.code == 2 and "no fabric is called 'a1000'" in ran.err


def test_a_log_of_something_else_is_refused(foretrace, tmp_path):
    (tmp_path / "make.log").write_text("cc -o x x.c")
    ran = foretrace("platform", "fabric", "--from", tmp_path / "make.log", "--out", tmp_path / "new")
    assert ran.code == 2 and "make.log holds no table of nccl-tests" in ran.err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("words", [("show", "nothing"), ("compare", "h200", "nothing")])
def test_an_unknown_platform_is_answered_with_the_known_ones(foretrace, words):
    ran = foretrace("platform", *words)
    assert ran.code == 2 and "no platform is called 'nothing'" in ran.err and "h200" in ran.err


def test_the_cpu_of_this_machine_is_shown_once_it_is_calibrated(foretrace, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    ran = foretrace("platform", "show", "cpu")
    assert ran.code == 2 and "the CPU of this machine was not calibrated. `foretrace calibrate cpu`" in ran.err


def test_a_platform_of_an_older_version_is_refused_with_the_way_to_refit_it(foretrace, mine):
    about = mine / "platform.json"
    about.write_text(about.read_text().replace(f'"version": {VERSION}', '"version": 0'))
    (mine / "raw").mkdir()
    ran = foretrace("platform", "show", "mine")
    assert ran.code == 2 and ran.err.count("\n") == 1
    assert "format version 0" in ran.err and f"`foretrace calibrate fit --out {mine}`" in ran.err


def test_a_damaged_index_of_models_says_which_field(foretrace, mine):
    (mine / "models" / "index.json").write_text('{"matrix": {"gmae": "good"}}')
    ran = foretrace("platform", "show", "mine")
    assert ran.code == 2 and "models/index.json: the field 'matrix.measurements' is missing" in ran.err


def test_every_word_and_option_is_in_its_page(foretrace, request):
    page = (request.config.rootpath / "docs" / "platform.md").read_text()
    for word in ("list", "show", "compare", "fabric"):
        assert f"| `{word}" in page
        options = set(re.findall(r"--[a-z]+", foretrace("platform", word, "--help").out)) - {"--help"}
        assert all(option in page for option in options)


def test_a_gpu_by_its_description_is_listed_and_shown(foretrace):
    listed = foretrace("platform", "list").out
    assert re.search(r"^a100 +108 +1,410 +80 +2,039 +40 +19.5 +312  own tables, h200$", listed, re.MULTILINE)
    assert re.search(r"^b300 .* b200$", listed, re.MULTILINE)
    assert "published tables of b200" in foretrace("platform", "show", "b300").out
    shown = foretrace("platform", "show", "a100").out
    assert "not calibrated: kernel times are scaled from h200" in shown.replace("\n", " ")
    words = json.loads(foretrace("platform", "show", "a100", "--json").out)
    assert (words["device"]["sms"], words["carried_from"], words["made"]) == (108, "h200", "")
    assert len(json.loads(foretrace("platform", "list", "--json").out)["devices"]) >= 19


def test_a_scaled_platform_is_shown_and_compared(foretrace):
    assert "hypothetical, with hbm=1.5" in foretrace("platform", "show", "h200:hbm=1.5").out
    words = json.loads(foretrace("platform", "compare", "h200", "h200:hbm=1.5", "--json").out)
    changed = {row["name"]: row["ratio"] for row in words["figures"] if row["ratio"] != 1.0}
    assert changed == {"memory rate, peak": 1.5, "memory rate, reached": 1.5}


def test_a_log_without_end_makes_no_fabric(foretrace, tmp_path):
    ran = foretrace("platform", "fabric", "--from", "/dev/zero", "--out", tmp_path / "mine")
    said = "foretrace: /dev/zero is a device: reading it may never end. Give a file.\n"
    assert (ran.code, ran.err) == (2, said) and not (tmp_path / "mine").exists()


def test_every_family_says_where_its_times_come_from(foretrace):
    def sources(name: str) -> dict[str, str]:
        families = json.loads(foretrace("platform", "show", name, "--json").out)["families"]
        return {family: fields["source"] for family, fields in families.items()}

    assert set(sources("h200").values()) == {"measured"}
    near = sources("rtx-pro-6000")
    assert near["matrix"] == "published tables of l40s, else scaled from l40s"
    assert near["norms"] == "scaled from l40s"
    assert "published tables, else scaled from h200" in foretrace("platform", "show", "h100").out
