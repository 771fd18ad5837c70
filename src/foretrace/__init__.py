"""Foretrace: watch one training step; predict, replay and explain it anywhere.

The public names are listed in ``__init__.pyi``; each is imported when it is first asked for.

>>> import foretrace as ft
>>> "observe" in dir(ft)
True
"""

from foretrace._lazy import lazy_exports

__version__ = "0.1.0"

__getattr__, __dir__ = lazy_exports(__name__)
