from __future__ import annotations

import pytest

from foretrace.calibrating import calibrate
from foretrace.graph import ForetraceError
from foretrace.platform.alone import alone_in


def test_a_second_calibration_in_the_same_folder_is_refused_and_another_folder_is_not(tmp_path):
    with alone_in(tmp_path / "mine"), alone_in(tmp_path / "other"):
        with pytest.raises(ForetraceError, match="another calibration is at work in"):
            calibrate(tmp_path / "mine", ("device",), 0.0, "cpu")
        assert not list((tmp_path / "mine").iterdir())
    with alone_in(tmp_path / "mine"):
        pass
