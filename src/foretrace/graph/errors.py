"""The one kind of error a user sees."""

from __future__ import annotations


class ForetraceError(Exception):
    """What was wrong with which file, and what to do about it: shown as it is, without a traceback.

    >>> print(ForetraceError("a.json is empty", "Record it again."))
    a.json is empty. Record it again.
    """

    def __init__(self, what: str, advice: str = "") -> None:
        self.what, self.advice = what.rstrip("."), advice
        super().__init__(f"{self.what}. {advice}".strip())
