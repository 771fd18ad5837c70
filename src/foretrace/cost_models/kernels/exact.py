"""Exact times: calls that were measured because a step has them are looked up, and need no model."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrace.errors import ForetraceError
from foretrace.files import read_bounded
from foretrace.graph import Indices, Op, Tf32
from foretrace.platform.measurements.cases import case_key, case_of_each
from foretrace.platform.platform import EXACT
from foretrace.platform.typed_json import LARGEST, MAX_TIMED_BYTES

if TYPE_CHECKING:
    from foretrace.platform.measurements.kernels import Measurement, Repeat

FILE = Path(EXACT).name
_SHORT_ENDS = re.compile(r"_tilesize|_\d+x\d+|_sm\d+_|_f\d+f\d+|_bf16|_align\d")


class TimedCall(NamedTuple):
    """The kernels of a call, with the time of each."""

    kernels: list[str]
    cold_us: NDArray[np.float64]
    warm_us: NDArray[np.float64]
    spread: float
    """Range of its repeats as a share of the median."""

    @classmethod
    def of(cls, found: Measurement) -> TimedCall:
        """From repeats: the median of each kernel; on a CPU the mean.

        A CPU core that others use too is fast at one time and half as fast at another. A step has both.

        >>> from foretrace.platform.measurements.kernels import Case, Measurement
        >>> seen = Measurement(Case(Op("aten::relu")), cold=[[("k", 4.0)]], warm=[[("k", 2.0)], [("k", 3.0)]])
        >>> TimedCall.of(seen).warm_us.tolist()
        [2.5]
        """
        kernels = [short_name(name) for name, _ in found.cold[0]]
        average = np.mean if found.on_processor else np.median
        cold, warm = (average(_alike(repeats, len(kernels)), axis=0) for repeats in (found.cold, found.warm))
        return cls(kernels, cold, warm, max(found.spread("cold"), found.spread("warm")))

    @classmethod
    def checked(cls, kernels: list[str], cold_us: list[float], warm_us: list[float], spread: float) -> TimedCall:
        """From the fields in a file; a ValueError for what is no timed call.

        >>> TimedCall.checked(["gemm"], [4.0], [3.5, 0.5], 0.1)
        Traceback (most recent call last):
        ...
        ValueError: ['gemm'] took [4.0] and [3.5, 0.5], 0.1 apart
        """
        cold, warm = np.array(cold_us, float), np.array(warm_us, float)
        named = isinstance(kernels, list) and all(isinstance(name, str) for name in kernels)
        numbers = np.concatenate([cold.ravel(), warm.ravel(), [spread]])
        timed = ((numbers >= 0) & (numbers <= LARGEST)).all()
        if not named or cold.shape != warm.shape or cold.shape != (len(kernels),) or not timed:
            raise ValueError(f"{kernels} took {cold_us} and {warm_us}, {spread} apart")
        return cls(kernels, cold, warm, float(spread))

    @classmethod
    def as_recorded(cls, launched: Sequence[tuple[str, float]]) -> TimedCall:
        """As a recorded step had it, whatever the cache held."""
        us = np.array([took for _, took in launched], float)
        return cls([short_name(name) for name, _ in launched], us, us, 0.0)


class ExactTimes(NamedTuple):
    """Timed calls by their `case_key`."""

    calls: Mapping[str, TimedCall]

    @classmethod
    def measured(cls, found: Iterable[Measurement]) -> ExactTimes:
        """From measurements; the repeats of a call that was measured more than once are pooled.

        On a CPU each measurement is averaged first: a fast process makes more repeats.
        """
        from foretrace.platform.measurements.kernels import Measurement  # most steps are priced without

        calls: dict[str, Measurement] = {}
        for one in found:
            known = calls.setdefault(case_key(one.case), Measurement(one.case))
            known.cold += _mean(one.cold) if one.on_processor else one.cold
            known.warm += _mean(one.warm) if one.on_processor else one.warm
        return cls({key: TimedCall.of(one) for key, one in calls.items()})

    def of(self, ops: Sequence[Op], indices: Sequence[Indices], tf32: Tf32) -> list[TimedCall | None]:
        """The measured time of each op; None for one that was not timed."""
        if not self.calls:
            return [None] * len(ops)
        cases = case_of_each(ops, indices, tf32)
        seen = {id(case): self.calls.get(case_key(case)) for case in {id(c): c for c in cases if c}.values()}
        return [seen.get(id(case)) for case in cases]

    def write(self, folder: Path) -> None:
        """Write it to its file in the models' folder."""
        lines = {
            key: [call.kernels, call.cold_us.round(3).tolist(), call.warm_us.round(3).tolist(), round(call.spread, 4)]
            for key, call in self.calls.items()
        }
        (folder / FILE).write_bytes(gzip.compress(json.dumps(lines).encode(), mtime=0))

    @classmethod
    def read(cls, folder: Path) -> ExactTimes:
        """Read what `write` wrote; nothing where no step was measured."""
        path = folder / FILE
        if not path.exists():
            return cls({})
        try:
            lines: dict[str, Any] = json.loads(read_bounded(path, MAX_TIMED_BYTES, "timed calls"))
            return cls({key: TimedCall.checked(*line) for key, line in lines.items()})
        except (OSError, EOFError, zlib.error, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise ForetraceError(
                f"{path} does not hold timed calls ({error})", "Restore it, or fit it again: foretrace calibrate fit."
            ) from None


def _alike(repeats: Sequence[Repeat], kernels: int) -> NDArray[np.float64]:
    """Times of the repeats that had so many kernels."""
    alike = [[us for _, us in repeat] for repeat in repeats if len(repeat) == kernels]
    return np.array(alike, float).reshape(len(alike), kernels) if alike else np.zeros((1, kernels))


def _mean(repeats: Sequence[Repeat]) -> list[Repeat]:
    """The repeats of a call on a CPU as one."""
    from foretrace.platform.measurements.kernels import CALL

    return [[(CALL, float(np.mean([us for _, us in chain.from_iterable(repeats)])))]] if repeats else []


@cache
def short_name(kernel: str) -> str:
    """A kernel's name without its template arguments, tiles and dtypes.

    >>> short_name("void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor>(int)")
    'vectorized_elementwise_kernel'
    >>> short_name("nvjet_sm90_tst_128x256_64x4_2x1_v_bz_TNN"), short_name("Memset (Device)")
    ('nvjet', 'Memset')
    """
    if "cutlass" in kernel:
        return "cutlass"
    name = re.split(r"[<(]", kernel.replace("(anonymous namespace)::", ""))[0].strip()
    return _SHORT_ENDS.split(name.split("::")[-1].split(" ")[-1])[0] or kernel[:40]
