from __future__ import annotations

import json

import numpy as np

from foretrace.report.json import as_json
from tests.report.samples import Told


def test_the_same_words_give_the_same_text_whatever_their_order(words):
    backwards = dict(reversed(words.items()))
    assert as_json(Told(words)) == as_json(Told(backwards))


def test_what_is_no_number_is_null(words):
    words["step_ms"] = {0: float("nan"), 1: float("inf"), 2: np.float64("nan")}
    assert json.loads(as_json(Told(words)))["step_ms"] == {"0": None, "1": None, "2": None}


def test_numbers_of_numpy_come_out_as_numbers(words):
    words["world"], words["device_span_ms"] = np.int64(8), np.float32(1.5)
    read = json.loads(as_json(Told(words)))
    assert read["world"] == 8 and read["device_span_ms"] == 1.5


def test_names_survive_as_they_are(words):
    words["by_op"][0]["name"] = '</script>"\x1b[31m\u2028'
    assert json.loads(as_json(Told(words)))["by_op"][0]["name"] == '</script>"\x1b[31m\u2028'
