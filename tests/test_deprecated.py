"""Former names of the Python API keep working, with a warning."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("former", ["platform", "record", "replay", "whatif"])
def test_a_package_that_could_be_called_still_can(former: str) -> None:
    code = f"""
import warnings
import foretrace as ft
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    try:
        ft.{former}()
    except TypeError:
        pass  # arguments are missing, but for a platform
print([str(one.message) for one in caught if one.category is DeprecationWarning][0])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.startswith(f"ft.{former}(...) is now ft."), done.stderr
