from __future__ import annotations

import gzip
import http.client
import json
import os
import re
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlencode

import pytest

import foretrace as ft
from foretrace.analysis.report import StepReport
from foretrace.graph import Job
from foretrace.prediction.scaling import scaling_curve
from foretrace.report.json import as_json
from foretrace.ui import pages
from foretrace.ui.folder import Folder
from foretrace.ui.server import MAX_BODY_BYTES, Server
from foretrace.whatif.points import Point, Sweep
from foretrace.whatif.what_if import WhatIf
from tests.cli.samples import step_of_two_ops
from tests.narrowing import present
from tests.processes import PATIENCE_S
from tests.report.steps import sketched

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "shown"
    root.mkdir()
    for name, us in (("one", 40.0), ("two", 80.0)):
        (root / name).mkdir()
        (root / name / f"{name}.json.gz").write_bytes(gzip.compress(json.dumps(step_of_two_ops(HOSTILE, us)).encode()))
    coverage = {"measured": 0.0, "model": 1.0, "fallback": 0.0}
    for name, step in (("before.json", 2.0), ("after.json", 1.0)):
        forecast = StepReport(source=HOSTILE, platform="h200", step_ms=step, coverage=coverage)
        (root / name).write_text(as_json(forecast))
    (tmp_path / "secret.json").write_text(as_json(StepReport(source="secret", platform="h200", coverage=coverage)))
    return root


@pytest.fixture
def server(root):
    with Server(Folder(root)) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()


def ask(server, path, method="GET", body=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=PATIENCE_S)
    connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer, text


def test_the_list_shows_what_is_there(server):
    answer, text = ask(server, "/")
    assert answer.status == 200
    assert all(f">{name}</a>" in text for name in ("one", "two", "before.json", "after.json"))
    assert answer.headers["X-Content-Type-Options"] == "nosniff" and answer.headers["Cache-Control"] == "no-store"


def test_a_trace_is_opened_and_names_stay_text(server):
    answer, text = ask(server, "/open?what=one")
    assert answer.status == 200 and "ProfilerStep#1" in text and HOSTILE not in text


def test_predictions_are_opened_and_compared(server):
    answer, text = ask(server, "/open?what=before.json")
    assert answer.status == 200 and "2.00" in text
    answer, text = ask(server, "/compare?a=before.json&b=after.json")
    assert answer.status == 200 and "-50 %" in text and HOSTILE not in text


def test_curves_and_what_ifs_are_opened_too(server, root):
    curve = scaling_curve(
        [StepReport(platform="h200", world=1, step_ms=4.0), StepReport(platform="h200", world=2, step_ms=5.0)]
    )
    (root / "curve.json").write_text(as_json(curve))
    (root / "whatif.json").write_text(
        as_json(
            WhatIf(["batch=64"], StepReport(platform="h200", step_ms=2.0), StepReport(platform="h200", step_ms=1.0))
        )
    )
    assert "80 % of the speed" in ask(server, "/open?what=curve.json")[1]
    assert "-50 %" in ask(server, "/open?what=whatif.json")[1]


def test_a_sweep_is_opened_as_well(server, root):
    points = [
        Point([f"batch={HOSTILE}"], "h200", step_ms=4.0, sample_us=us, memory_bytes=1, fits=True) for us in (1.0, 2.0)
    ]
    (root / "sweep.json").write_text(as_json(Sweep(HOSTILE, points)))
    answer, text = ask(server, "/open?what=sweep.json")
    assert answer.status == 200 and "2 points" in text and HOSTILE not in text


def test_a_damaged_recording_is_named(server, root):
    (root / "one" / "one.json.gz").write_bytes((root / "one" / "one.json.gz").read_bytes()[:60])
    answer, text = ask(server, "/open?what=one")
    assert answer.status == 422 and "one.json.gz" in text
    assert ask(server, "/")[0].status == ask(server, "/open?what=two")[0].status == 200


def test_an_empty_folder_says_how_to_make_the_first_recording(tmp_path):
    with Server(Folder(tmp_path)) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        answer, text = ask(server, "/")
        assert answer.status == 200 and "Nothing here yet" in text and "foretrace record" in text
        server.shutdown()


def test_a_result_is_not_predicted_again(server, root):
    (root / "curve.json").write_text(as_json(scaling_curve([StepReport(platform="h200", world=1, step_ms=4.0)])))
    for path in ("/predict?what=before.json", "/whatif?what=before.json", "/compare?a=curve.json&b=after.json"):
        answer, text = ask(server, path)
        assert answer.status == 422 and "Open it from the list" in text


def test_only_what_can_be_compared_is_offered_for_it(server, root):
    (root / "curve.json").write_text(as_json(scaling_curve([StepReport(platform="h200", world=1, step_ms=4.0)])))
    _, text = ask(server, "/")
    offered = present(re.search(r'<select name="a".*?</select>', text)).group()
    assert {"one", "two", "before.json", "after.json"} == set(re.findall(r"<option[^>]*>([^<]*)", offered))


def test_a_prediction_with_few_fields_has_a_page(server, root):
    (root / "thin.json").write_text('{"step_ms": 1.25, "platform": "h200", "coverage": {}}')
    answer, text = ask(server, "/open?what=thin.json")
    assert answer.status == 200 and '<div class="answer">1.25<small>' in text


def test_a_damaged_document_is_named(server, root):
    words = json.loads((root / "before.json").read_text())
    (root / "bad.json").write_text(json.dumps(words | {"by_op": [1, 2]}))
    (root / "plan.json").write_text('{"step_ms": 1, "plan": {}, "ranks": []}')
    for name in ("bad.json", "plan.json"):
        answer, text = ask(server, f"/open?what={name}")
        assert answer.status == 422 and f"{name} is damaged" in text


@pytest.mark.parametrize(
    "what", ["../secret.json", "..%2fsecret.json", "/etc/passwd", "one/../../secret.json", "nothing"]
)
def test_paths_outside_the_folder_are_refused(server, what):
    answer, text = ask(server, f"/open?what={what}")
    assert answer.status == 422 and "not in the folder" in text and "secret</" not in text


def test_links_out_of_the_folder_are_refused(server, root):
    (root / "link.json").symlink_to(root.parent / "secret.json")
    answer, text = ask(server, "/open?what=link.json")
    assert answer.status == 422 and "not in the folder" in text


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Sec_Fetch_Site": "cross-site"},
    ],
)
def test_others_pages_are_refused(server, headers):
    answer, text = ask(server, "/open?what=before.json", **headers)
    assert answer.status == 403 and "2.00" not in text


def test_a_form_must_come_from_the_servers_own_page(server):
    own = f"http://127.0.0.1:{server.server_port}"
    form = {"Content_Type": "application/x-www-form-urlencoded"}
    assert ask(server, "/nowhere", "POST", "a=b", **form)[0].status == 403
    assert ask(server, "/nowhere", "POST", "a=b", Origin="http://evil.example", **form)[0].status == 403
    assert ask(server, "/nowhere", "POST", "a=b", Origin=own, **form)[0].status == 404


def announced(server, length: object) -> bytes:
    """The status of a form that says how long it is, and of which nothing is ever sent."""
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=PATIENCE_S) as caller:
        host = f"127.0.0.1:{server.server_port}"
        head = ["POST /whatif HTTP/1.1", f"Host: {host}", f"Origin: http://{host}", f"Content-Length: {length}"]
        caller.sendall("\r\n".join([*head, "", ""]).encode())
        return caller.recv(1000).split()[1]


def test_an_upload_that_is_too_large_is_refused_before_it_is_read(server):
    assert announced(server, MAX_BODY_BYTES + 1) == b"413"
    assert announced(server, "9" * 5000) == b"413"


@pytest.mark.parametrize("length", ["-1", "many", ""])
def test_a_form_of_unknown_length_is_refused(server, length):
    assert announced(server, length) == b"400"


def said(server, line: str) -> bytes:
    """What is answered to a request line that no client would write."""
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=PATIENCE_S) as caller:
        caller.sendall(f"{line}\r\nHost: 127.0.0.1:{server.server_port}\r\n\r\n".encode())
        return b"".join(iter(lambda: caller.recv(65536), b""))


@pytest.mark.parametrize("line", ["GET http://[ HTTP/1.1", "GET / / HTTP/1.1"])
def test_a_malformed_request_is_refused_with_a_page(server, capfd, line):
    answer = said(server, line)
    assert b" 400 " in answer.splitlines()[0] and b"Not understood" in answer
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "BREW"])
def test_what_is_neither_reading_nor_a_form_is_refused(server, method):
    answer, text = ask(server, "/", method)
    assert answer.status == 405 and answer.headers["Allow"] == "GET, HEAD, POST" and "Not supported" in text


def test_head_is_get_without_the_page(server):
    answer, text = ask(server, "/", "HEAD")
    assert answer.status == 200 and not text
    # Footers hold nothing that changes: the page is as long as it was said to be.
    assert int(answer.headers["Content-Length"]) == len(ask(server, "/")[1].encode())
    assert ask(server, "/nowhere", "HEAD")[0].status == 404


def test_pages_without_charts_do_not_carry_the_program_that_draws_them(server):
    for path in ("/", "/nowhere", "/open?what=nothing"):
        assert len(ask(server, path)[1]) < 40_000, path
    assert len(ask(server, "/", Host="evil.example")[1]) < 40_000


def test_a_pipe_is_refused_and_does_not_block(server, root):
    os.mkfifo(root / "fifo.json")
    (root / "piped").mkdir()
    os.mkfifo(root / "piped" / "kineto.json.gz")
    for name in ("fifo.json", "piped"):
        answer, text = ask(server, f"/open?what={name}")
        assert answer.status == 422 and "neither file nor folder" in text
    answer, text = ask(server, "/")
    assert answer.status == 200 and "fifo" not in text and "piped" not in text


def test_the_list_and_documents_do_not_wait_for_a_trace_that_is_read(server):
    with pages.WORK.on("reading a large one"):
        assert ask(server, "/")[0].status == 200
        assert ask(server, "/open?what=before.json")[0].status == 200


def test_the_list_says_what_each_document_is(server, root):
    (root / "many.json").write_text(json.dumps({"source": "x", "points": [], "best": None, "memory_limit": None}))
    (root / "other.json").write_text("{}")
    rows = re.findall(r'data-wait="Reading ([^"]+)">.*?</td><td>(.*?)</td>', ask(server, "/")[1])
    kinds = {"before.json": "prediction", "many.json": "sweep", "other.json": "document", "one": "trace"}
    assert kinds.items() <= dict(rows).items()


def test_a_waiting_page_can_ask_for_the_stage_of_the_work(server):
    assert ask(server, "/working")[1] == ""
    with pages.WORK.on("reading <b>run</b>") as on_progress:
        answer, text = ask(server, "/working")
        assert text == "reading <b>run</b>" and answer.headers["Content-Type"].startswith("text/plain")
        on_progress("predicting run on h200")
        assert ask(server, "/working")[1] == "predicting run on h200"
    assert ask(server, "/working", Host="evil.example")[0].status == 403


def test_two_tabs_that_ask_at_once_are_both_answered(server):
    with ThreadPoolExecutor() as tabs:
        shown = list(tabs.map(lambda name: ask(server, f"/open?what={name}"), ("one", "two") * 2))
    assert [answer.status for answer, _ in shown] == [200] * 4
    assert shown[0][1] == shown[2][1] != shown[1][1] == shown[3][1]


def test_a_bug_is_one_line(server, monkeypatch, capfd):
    def broken(folder, fields):
        raise KeyError("no such thing")

    monkeypatch.delenv("FORETRACE_DEBUG", raising=False)
    monkeypatch.setitem(pages.PAGES, ("GET", "/"), broken)
    answer, text = ask(server, "/?what=secret")
    assert answer.status == 500 and "A bug of Foretrace" in text
    assert capfd.readouterr().err == "foretrace: GET /: KeyError: 'no such thing'\n"


def test_very_many_fields_are_refused(server):
    answer, _ = ask(server, "/?" + urlencode([("a", 1)] * 500))
    assert answer.status == 400


def test_an_address_without_a_page_says_so(server):
    answer, text = ask(server, f"/{HOSTILE.replace('<', '%3C')}")
    assert answer.status == 404 and HOSTILE not in text


def test_no_folder_of_platforms_elsewhere_is_read(server):
    answer, text = ask(server, "/predict?what=one&on=/etc")
    assert answer.status == 422 and "no platform is called" in text


def test_a_machine_that_is_not_measured_yet_says_how_to(server, monkeypatch):
    monkeypatch.setattr(pages, "platform_folders", lambda: {"h200": None})
    answer, text = ask(server, "/predict?what=one&on=cpu")
    assert answer.status == 422 and "foretrace calibrate cpu" in text


@pytest.fixture
def sketch(monkeypatch):
    """Whatever is opened, it is this step."""
    monkeypatch.setattr(pages, "load", lambda path: Job([sketched(4)], "sketch"))
    pages._loaded.cache_clear()
    yield
    pages._loaded.cache_clear()


def asked_for(server, **fields):
    own = f"http://127.0.0.1:{server.server_port}"
    return ask(server, "/whatif", "POST", urlencode(fields, doseq=True), Origin=own)


def test_a_what_if_is_asked_by_a_form(server, sketch):
    answer, text = ask(server, "/whatif?what=one")
    assert answer.status == 200 and 'name="changes"' in text
    answer, text = asked_for(server, what="one", changes="dtype=fp32\n\n", on="h200")
    assert answer.status == 200 and "dtype=fp32" in text and HOSTILE not in text


@pytest.mark.parametrize(
    ("changes", "said"), [("", "nothing is to be changed"), ("colour=red", "colour"), ("batch", "is no change")]
)
def test_a_wrong_change_is_refused_on_the_form(server, sketch, changes, said):
    answer, text = asked_for(server, what="one", changes=changes, on="a100")
    assert answer.status == 422 and said in text and HOSTILE not in text
    # The form is there again, as it was filled in.
    assert f">{changes}</textarea>" in text and 'value="a100"' in text


def test_a_recording_is_predicted_and_compared_with_itself_elsewhere(server, sketch):
    answer, text = ask(server, "/predict?what=one&on=h200")
    assert answer.status == 200 and "ms a step" in text
    answer, text = ask(server, "/compare?a=one&b=one&a_on=h200&b_on=h200:hbm=2")
    assert answer.status == 200 and "h200:hbm=2" in text
    assert ask(server, "/compare?a=one&b=one")[0].status == 422


def test_listening_for_others_asks_for_a_token(root):
    with Server(Folder(root), "0.0.0.0") as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        assert ask(server, "/")[0].status == 403
        assert ask(server, "/?token=wrong")[0].status == 403
        others = f"http://{socket.gethostname()}:{server.server_port}"
        assert server.address.startswith(others), "an address that other machines can open"
        answer, _ = ask(server, server.address.removeprefix(others))
        assert answer.status == 303 and answer.headers["Location"] == "/"
        cookie = answer.headers["Set-Cookie"]
        assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
        assert ask(server, "/", Cookie=cookie.partition(";")[0])[0].status == 200
        server.shutdown()


def test_a_needless_token_is_ignored(server):
    answer, _ = ask(server, "/?token=x")
    assert answer.status == 200 and "Set-Cookie" not in answer.headers


def test_the_token_never_leads_to_another_host(root):
    with Server(Folder(root), "0.0.0.0") as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        answer, _ = ask(server, f"//evil.example/?token={server.guard.token}")
        assert answer.headers["Location"].startswith("/") and not answer.headers["Location"].startswith("//")
        server.shutdown()


@pytest.mark.parametrize(
    "damage",
    [
        {"step_ms": 10**400}, {"mfu": "x"}, {"samples": [1]}, {"by_op": [{"name": "x"}]}, {"notes": [[1]]},
        {"by_phase": [{"name": {}, "device_ms": 1, "host_ms": 1, "count": 1}]}, {"step_ms": 1e308},
    ],
)  # fmt: skip
def test_a_damaged_prediction_is_named_where_it_is_compared(server, root, damage):
    words = json.loads((root / "before.json").read_text())
    (root / "bad.json").write_text(json.dumps({**words, **damage}))
    for address in ("/compare?a=bad.json&b=after.json", "/compare?a=after.json&b=bad.json"):
        answer, text = ask(server, address)
        assert answer.status == 422 and "bad.json is damaged: the field" in text


def test_the_list_has_the_figures_of_each_item(server, root, sketch):
    (root / "plan.json").write_text(
        json.dumps({"step_ms": 3.5, "plan": {}, "ranks": [1], "world": 4, "platform": "a100"})
    )
    (root / "odd.json").write_text(json.dumps({"step_ms": [1], "platform": {}, "coverage": {}, "world": True}))
    _, text = ask(server, "/")
    row = dict(re.findall(r'<td class="name"><a [^>]*>([^<]*)</a>(.*?)</tr>', text))
    assert "2.00 ms" in row["before.json"] and "h200" in row["before.json"]
    assert "3.50 ms" in row["plan.json"] and ">4<" in row["plan.json"] and " ms<" not in row["odd.json"]
    assert " ms<" not in row["one"]  # a trace is not read for the list


def test_what_was_opened_has_its_figures_in_the_list(server):
    assert ask(server, "/open?what=one")[0].status == 200
    _, text = ask(server, "/")
    assert " ms<" in dict(re.findall(r'<td class="name"><a [^>]*>([^<]*)</a>(.*?)</tr>', text))["one"]


def test_two_hundred_equal_requests_at_once_are_one_prediction(server, sketch, monkeypatch):
    made = []
    real = ft.predict
    monkeypatch.setattr(pages, "predict", lambda job, on: made.append(on) or real(job, on))
    with ThreadPoolExecutor(200) as crowd:
        answers = list(crowd.map(lambda _: ask(server, "/predict?what=two&on=h200")[0].status, range(200)))
    assert answers == [200] * 200 and made == ["h200"]


def test_a_step_that_changed_is_predicted_anew(server, root, sketch, monkeypatch):
    made = []
    real = ft.predict
    monkeypatch.setattr(pages, "predict", lambda job, on: made.append(on) or real(job, on))
    ask(server, "/predict?what=one&on=h200")
    os.utime(root / "one" / "one.json.gz", ns=(1, 2**62))
    ask(server, "/predict?what=one&on=h200")
    assert len(made) == 2


def test_the_answer_of_a_what_if_has_an_address(server, sketch):
    answer, text = ask(server, "/whatif?" + urlencode({"what": "one", "on": "h200", "changes": "dtype=fp32"}))
    assert answer.status == 200 and "dtype=fp32" in text and "ms" in text
    answer, text = ask(server, "/whatif?" + urlencode({"what": "one", "on": "h200", "changes": "colour=red"}))
    assert answer.status == 422 and ">colour=red</textarea>" in text
