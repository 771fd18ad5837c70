from __future__ import annotations

import json


def test_a_timeline_for_perfetto_holds_the_ops_and_kernels(foretrace, trace, tmp_path):
    ran = foretrace("export", trace, "--perfetto", tmp_path / "out.json")
    assert ran.code == 0, ran.err
    names = {event["name"] for event in json.loads((tmp_path / "out.json").read_text())["traceEvents"]}
    assert {"aten::mm", "gemm_kernel"} <= names


def test_chakra_traces_are_written_and_read_back(foretrace, trace, tmp_path):
    assert foretrace("export", trace, "--chakra", tmp_path / "chakra").code == 0
    assert foretrace("show", tmp_path / "chakra").code == 0


def test_somewhere_to_write_is_needed(foretrace, trace):
    ran = foretrace("export", trace)
    assert ran.code == 2 and "--perfetto" in ran.err


def test_a_missing_output_and_two_formats_are_said_in_one_line(foretrace, trace):
    assert foretrace("export", trace).err == (
        "foretrace: nothing says where to write it. Give --chakra DIR, --perfetto FILE, or both.\n"
    )
    ran = foretrace("show", trace, "--json", "--csv")
    assert ran.code == 2 and ran.err.startswith("foretrace: --csv and --json are two formats: give one of them.")
