"""Labels of recordings: job, team, model, cluster, GPU hours, date and any other, from options and from CSV files."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path

from foretrace.errors import ForetraceError
from foretrace.files import read_bounded, read_error
from foretrace.fleet.record import StepRecord

RECORDING, HOURS, DATE = "recording", "gpu_hours", "date"
NAMED = ("job", "team", "model", "cluster")
"""Labels that are columns of the index; others are kept by their names."""
MAX_CSV_BYTES = 256 << 20

Labels = Mapping[str, str]


def parse_labels(texts: Iterable[str]) -> dict[str, str]:
    """Labels of the command line.

    >>> parse_labels(["team=ads", "gpu_hours=120"])
    {'team': 'ads', 'gpu_hours': '120'}
    >>> parse_labels(["team=ads", "team=feed"])
    Traceback (most recent call last):
    foretrace.errors.ForetraceError: two labels are given for one job: team=ads and team=feed. Give one of them.
    """
    labels: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise ForetraceError(f"{text!r} is no label", "Write it like team=ads.")
        if labels.get(name.strip(), value) != value:
            raise ForetraceError(
                f"two labels are given for one job: {name}={labels[name.strip()]} and {text}", "Give one of them."
            )
        labels[name.strip()] = value
    check_labels(labels, "--label")
    return labels


def read_labels(path: Path) -> dict[str, dict[str, str]]:
    """The labels of a CSV file, by its column ``recording``: a recording's name or path."""
    try:
        text = read_bounded(path, MAX_CSV_BYTES, "a table of labels").decode("utf-8-sig", "replace")
    except OSError as error:
        raise read_error(path, error) from None
    try:
        reader = csv.DictReader(io.StringIO(text))
        columns, rows = reader.fieldnames or (), list(reader)
    except csv.Error as error:
        raise ForetraceError(f"{path} can't be read ({error})", "Give a CSV file.") from None
    if RECORDING not in columns:
        raise ForetraceError(
            f"{path} has no column {RECORDING!r}", f"Give it one, with names or paths: {RECORDING},team,gpu_hours."
        )
    found: dict[str, dict[str, str]] = {}
    for number, row in enumerate(rows, 2):
        key = (row.pop(RECORDING) or "").strip().rstrip("/")
        labels = {name.strip(): value.strip() for name, value in row.items() if name and value and value.strip()}
        check_labels(labels, f"{path}, line {number}")
        if found.setdefault(key, labels) != labels:
            raise ForetraceError(
                f"{path}, line {number}: {key} is labelled twice, {_text(found[key])} and {_text(labels)}",
                "Leave one of the lines.",
            )
    return found


def check_labels(labels: Labels, where: str) -> None:
    """Refuse hours that are no number above zero, and dates that are none."""
    if HOURS in labels:
        try:
            hours = float(labels[HOURS])
        except ValueError:
            hours = math.nan
        if not (math.isfinite(hours) and hours > 0):
            raise ForetraceError(
                f"{where}: {HOURS} can't be {labels[HOURS]!r}",
                "Give a number above 0, or leave it out: the recording then counts as one hour.",
            )
    if DATE in labels:
        try:
            date.fromisoformat(labels[DATE])
        except ValueError:
            raise ForetraceError(f"{where}: {labels[DATE]!r} is no date", "Write it like 2026-11-16.") from None


def labels_for(path: str, name: str, everywhere: Labels, by_recording: Mapping[str, Labels]) -> dict[str, str]:
    """The labels of one recording: those of the table come before those given for all."""
    return {**everywhere, **by_recording.get(name, {}), **by_recording.get(path.rstrip("/"), {})}


def labelled(record: StepRecord, labels: Labels) -> StepRecord:
    """The record with these labels instead of those it had under the same names.

    >>> labelled(StepRecord(), {"team": "ads", "gpu_hours": "8", "region": "eu"}).labels
    [('region', 'eu')]
    """
    others = dict(record.labels) | {name: value for name, value in labels.items() if name not in (*NAMED, HOURS, DATE)}
    return replace(
        record,
        **{name: labels[name] for name in NAMED if name in labels},  # type: ignore[arg-type]
        gpu_hours=float(labels[HOURS]) if HOURS in labels else record.gpu_hours,
        made=labels.get(DATE, record.made),
        labels=sorted(others.items()),
    )


def check_agree(name: str, had: Labels, given: Labels) -> None:
    """Refuse labels that contradict those that a recording has in the store."""
    for label, value in given.items():
        same = had.get(label) in (None, "", value)
        if label == HOURS and had.get(label):
            same = float(had[label]) == float(value)
        if not same:
            raise ForetraceError(
                f"{name} is in the store with {label}={had[label]}, and now {label}={value} is given",
                "Say --relabel to change it.",
            )


def _text(labels: Labels) -> str:
    return ", ".join(f"{name}={value}" for name, value in labels.items()) or "nothing"


def unmatched(by_recording: Mapping[str, Labels], names: Sequence[str]) -> list[str]:
    """Lines of a table that belong to no recording."""
    known = {one.rstrip("/") for one in names}
    return [name for name in by_recording if name not in known]
