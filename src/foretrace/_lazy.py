"""Packages whose exported names are imported when they are first asked for.

A package lists its public names once, in ``__init__.pyi``, where type checkers and readers find them. A command then
loads only the modules that it uses: importing ``foretrace.analysis`` loads none of its modules. Packages that could
be called before still can (`keep_callable`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, TypeVar

T = TypeVar("T")


def lazy_exports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The ``__getattr__`` and ``__dir__`` of a package that exports what its ``__init__.pyi`` imports.

    >>> import foretrace.simulation
    >>> "TaskGraph" in dir(foretrace.simulation), foretrace.simulation.TaskGraph.__module__
    (True, 'foretrace.simulation.task_graph')
    """
    homes: dict[str, tuple[str, str]] = {}

    def exported() -> dict[str, tuple[str, str]]:
        if not homes:
            homes.update(_homes(package))
        return homes

    def get(name: str) -> Any:
        if name.startswith("__") or name not in exported():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, original = exported()[name]
        of_package = module == package  # a module of the package itself
        value = import_module(f"{module}.{original}") if of_package else getattr(import_module(module), original)
        setattr(sys.modules[package], name, value)
        return value

    def listed() -> list[str]:
        return sorted({*vars(sys.modules[package]), *exported()})

    return get, listed


class LazyMapping(Mapping[str, T]):
    """Values by name, each made when it is first asked for.

    >>> lengths = LazyMapping(["one", "three"], len)
    >>> lengths["three"], list(lengths), "two" in lengths
    (5, ['one', 'three'], False)
    """

    def __init__(self, names: Iterable[str], make: Callable[[str], T]) -> None:
        self._names = dict.fromkeys(names)
        self._make = cache(make)

    def __getitem__(self, name: str) -> T:
        if name not in self._names:
            raise KeyError(name)
        return self._make(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _homes(package: str) -> dict[str, tuple[str, str]]:
    """Module and name there of each name in the package's stub."""
    import ast
    from pathlib import Path  # in no import of a package: it takes as long as all of it

    stub = Path(str(sys.modules[package].__file__)).with_suffix(".pyi")
    imports = [node for node in ast.parse(stub.read_text()).body if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name: (str(node.module), alias.name) for node in imports for alias in node.names}


# Former calls of packages: they keep working, with a DeprecationWarning


class _CallablePackage(ModuleType):
    """A package that could be called: ``ft.record(step_fn)`` called the package ``foretrace.record``."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Call the public function that took the package's place."""
        import warnings

        name = FORMER_CALLS[self.__name__]
        warnings.warn(
            f"ft.{self.__name__.rpartition('.')[2]}(...) is now ft.{name}(...)", DeprecationWarning, stacklevel=2
        )
        return getattr(import_module("foretrace"), name)(*args, **options)


FORMER_CALLS = {
    "foretrace.platform": "load_platform",
    "foretrace.record": "record_step",
    "foretrace.replay": "replay_step",
    "foretrace.whatif": "what_if",
}
"""Packages that could be called, and the public function that does it now."""


def keep_callable(package: str) -> None:
    """Let a package be called as before, with a warning."""
    sys.modules[package].__class__ = _CallablePackage
