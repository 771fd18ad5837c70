"""The former name of `foretrace.transforms`."""

from __future__ import annotations

import pytest

import foretrace as ft


def test_a_former_name_forwards_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match=r"foretrace\.edits\.batch is now foretrace\.transforms\.batch"):
        assert ft.edits.batch is ft.transforms.batch


def test_all_transforms_are_listed_under_the_former_name() -> None:
    public = {name for name in dir(ft.transforms) if not name.startswith("_")}
    assert {"batch", "dtype", "parallelize", "shards"} <= public <= set(dir(ft.edits))


def test_a_name_that_never_was_raises() -> None:
    with pytest.raises(AttributeError):
        ft.edits.nothing  # noqa: B018
