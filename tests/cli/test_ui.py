from __future__ import annotations

import re
import socket
import subprocess
import sys
import urllib.request

from tests.narrowing import present
from tests.processes import PATIENCE_S, started


def test_a_folder_is_shown_until_it_is_stopped(tmp_path):
    command = [sys.executable, "-m", "foretrace", "ui", str(tmp_path), "--port", "0"]
    with started(command, stdout=subprocess.PIPE) as shown:
        line = present(shown.stdout).readline()
        address = present(re.match(r"http://127\.0\.0\.1:\d+/", line))[0]
        with urllib.request.urlopen(address, timeout=PATIENCE_S) as answer:
            assert "Nothing here yet" in answer.read().decode()
        shown.send_signal(2)
        assert shown.wait(PATIENCE_S) == 130


def test_a_folder_that_is_not_there_is_named(foretrace, tmp_path):
    ran = foretrace("ui", tmp_path / "nowhere")
    assert ran.code == 2 and "nowhere is no folder" in ran.err


def test_a_taken_port_is_reported(foretrace, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ran = foretrace("ui", tmp_path, "--port", taken.getsockname()[1])
    assert ran.code == 2 and "can't be listened on" in ran.err and "--port" in ran.err
