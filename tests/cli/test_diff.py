from __future__ import annotations

import json

from tests.cli.samples import step_of_two_ops


def test_the_op_that_got_slower_is_named_first(foretrace, trace, tmp_path):
    slower = tmp_path / "slower.json"
    slower.write_text(json.dumps(step_of_two_ops(kernel_us=60.0)))
    ran = foretrace("diff", trace, slower)
    assert ran.code == 0, ran.err
    assert "aten::mm" in ran.out


def test_a_missing_side_is_named(foretrace, trace, tmp_path):
    ran = foretrace("diff", trace, tmp_path / "nothing.json")
    assert ran.code == 2 and "nothing.json" in ran.err


def test_a_page_shows_both_steps_by_their_names(foretrace, trace, tmp_path):
    slower = tmp_path / "slower.json"
    slower.write_text(json.dumps(step_of_two_ops(kernel_us=60.0)))
    ran = foretrace("diff", trace, slower, "--html", tmp_path / "page.html")
    assert ran.code == 0, ran.err
    page = (tmp_path / "page.html").read_text()
    assert "slower.json" in page and trace.name in page and "aten::mm" in page
    refused = foretrace("diff", trace, slower, "--html", slower)
    assert refused.code == 2 and "would replace" in refused.err
