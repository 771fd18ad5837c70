from __future__ import annotations

import pytest

from foretrace.ui.guard import Guard
from tests.narrowing import present

HERE = Guard("127.0.0.1", 8173)
OPEN = Guard("0.0.0.0", 8173, "right", own_names=("gpu-box",))


@pytest.mark.parametrize("host", ["localhost:8173", "127.0.0.1:8173", "[::1]:8173", "127.0.0.2:8173"])
def test_this_machine_may_ask(host):
    assert HERE.refusal({"Host": host}) is None
    assert HERE.refusal({"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}) is None


@pytest.mark.parametrize(
    "host", ["evil.example:8173", "localhost:80", "localhost", "", "localhost.evil.example:8173", "127.0.0.1:x", "[::1"]
)
def test_a_foreign_host_name_that_resolves_here_is_refused(host):
    assert "not called" in present(HERE.refusal({"Host": host}))


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "http://localhost:3000", "null", "https://localhost.evil:8173"]
)
def test_pages_of_other_origins_are_refused(origin):
    assert "another site" in present(HERE.refusal({"Host": "localhost:8173", "Origin": origin}))


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_links_and_images_on_other_sites_are_refused(site):
    assert "another site" in present(HERE.refusal({"Host": "localhost:8173", "Sec-Fetch-Site": site}))


def test_requests_from_elsewhere_need_the_token():
    asked = {"Host": "10.0.0.5:8173"}
    assert "token" in present(OPEN.refusal(asked))
    assert "token" in present(OPEN.refusal(asked, "wrong"))
    assert OPEN.refusal(asked, "right") is None
    assert OPEN.refusal({**asked, "Cookie": "a=b; foretrace=right"}) is None
    assert "token" in present(OPEN.refusal({**asked, "Cookie": "foretrace=wrong"}))
    assert "token" in present(OPEN.refusal({**asked, "Cookie": "foretrace=right"}, "wrong"))


def test_even_with_the_token_the_name_must_be_the_servers():
    assert OPEN.refusal({"Host": "gpu-box:8173"}, "right") is None
    assert "not called" in present(OPEN.refusal({"Host": "evil.example:8173"}, "right"))
