"""Answers that show themselves in a notebook."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class InNotebooks(ABC):
    """An answer in words, of which a notebook shows the most important ones where a cell ends with it."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""

    def _repr_html_(self) -> str:
        import foretrace as ft  # by way of the front door, since it knows the room that shows things

        return ft.as_html(self)
