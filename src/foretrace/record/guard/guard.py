"""Putting stand-ins in the place of functions that have side effects, while something is sketched.

While a guard is on, calls that would write a file, reach a network, start a process or signal one are answered by
stand-ins: the script goes on, and nothing happens. An audit hook is the second wall: it refuses what reached the
interpreter's own functions by another way.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial, update_wrapper
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from foretrace.record.guard.side_effects import STARTED_AT, SideEffects, current_thread, place, shown

if TYPE_CHECKING:
    from foretrace.record.guard.overlay import Overlay

StandIn = Callable[..., Any]
"""Called in place of a function: given the function, then its arguments."""
STAND_INS: dict[str, list[tuple[str, StandIn]]] = {}
"""For each module, the names in it that are replaced while a guard is on."""
REPLACED: dict[str, list[tuple[str, Any]]] = {}
"""For each module, the names that get another value while a guard is on."""
UNIMPORTABLE: dict[str, str] = {}
"""Modules that do harm as soon as they are imported, and what they do."""
KNOWN = ("files", "network", "processes", "savers")
"""The modules beside this one that have stand-ins."""


class RefusedError(PermissionError):
    """A side effect that was refused, since nothing could stand in for it."""


def stands_in_for(*names: str) -> Callable[[StandIn], StandIn]:
    """Register a stand-in for functions or methods, each named as ``module:function`` or ``module:Class.method``."""

    def register(stand_in: StandIn) -> StandIn:
        for name in names:
            module, _, attribute = name.partition(":")
            STAND_INS.setdefault(module, []).append((attribute, stand_in))
        return stand_in

    return register


def does_nothing(action: str, target: int | str | None = None, gives: Any = None) -> StandIn:
    """A stand-in that notes a call and returns.

    Parameters
    ----------
    action
        What to note, with ``{}`` where the target goes.
    target
        The argument that says what the call is about: its place, or its name.
    gives
        What the call returns, or what makes that.
    """

    def stand_in(original: Any, *args: Any, **kwargs: Any) -> Any:
        about: Any = ""
        if isinstance(target, int):
            about = args[target] if len(args) > target else ""
        elif target is not None:
            about = kwargs.get(target, "its place")
        note(action, shown(about))
        return gives() if callable(gives) else gives

    return stand_in


class _Here(threading.local):
    """What is so on one thread."""

    trusted = 0
    """Inside a stand-in, or what else may do as it likes."""
    quiet = 0
    """Inside something that was noted as a whole."""


_here = _Here()
_outside: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
"""Threads of the caller's own program, which go on with their work meanwhile."""
_lock = threading.RLock()
_current: Guard | None = None
_depth = 0
_hooked = False


def guard() -> Guard:
    """The guard that is on; only stand-ins ask."""
    assert _current is not None
    return _current


def applies() -> bool:
    """Whether a guard is on, and this thread does what is sketched."""
    if _current is None or _here.trusted:
        return False
    return not _outside or current_thread() not in _outside


@contextlib.contextmanager
def trusted() -> Iterator[None]:
    """Let this thread do as it likes for a moment."""
    _here.trusted += 1
    try:
        yield
    finally:
        _here.trusted -= 1


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Redirect and refuse as always, and note nothing: the whole was noted."""
    _here.quiet += 1
    try:
        yield
    finally:
        _here.quiet -= 1


def note(action: str, target: object = "", seen: bool = False) -> None:
    """Note a side effect of what is sketched, with the line of the script that asked for it.

    ``seen``: the script finds it done, as a file that it wrote.
    """
    if not seen:
        guard().effects.answered += 1
    if not _here.quiet:
        guard().effects.add(action, target, place())


class Guard:
    """Puts stand-ins in place, and takes them away again."""

    def __init__(self, files: Overlay) -> None:
        self.effects = SideEffects()
        self.files = files
        self._undo: list[Callable[[], None]] = []
        self._importing = _Importing(self)

    def put(self) -> None:
        """Put all stand-ins in place; for modules that are imported later, then."""
        for module in {*STAND_INS, *REPLACED} & set(sys.modules):
            self.patch(sys.modules[module])
        sys.meta_path.insert(0, self._importing)

    def remove(self) -> None:
        """Put everything back."""
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self._importing)
        while self._undo:
            self._undo.pop()()

    def patch(self, module: ModuleType) -> None:
        """Put the stand-ins of one module in place."""
        for path, stand_in in STAND_INS.get(module.__name__, ()):
            self._swap(module, path, partial(_Answering, stand_in))
        for path, value in REPLACED.get(module.__name__, ()):
            self._swap(module, path, partial(_first, value))

    def _swap(self, owner: Any, path: str, made: Callable[[Any], Any]) -> None:
        *outer, name = path.split(".")
        for part in outer:
            owner = getattr(owner, part, None)
        original = getattr(owner, name, None)
        if original is None or getattr(original, "stands_in", False):
            return  # this Python, or this version of a library, does not have it; or it was put there by another name
        own = vars(owner).get(name)
        replacement = made(original)
        if isinstance(owner, type):
            replacement = replacement.as_method() if isinstance(replacement, _Answering) else replacement
        try:
            setattr(owner, name, replacement)
        except (AttributeError, TypeError):  # a type of C
            return
        if own is None:
            self._undo.append(lambda: delattr(owner, name))
        else:
            self._undo.append(lambda: setattr(owner, name, own))
        self._join_capabilities(original, replacement)

    def _join_capabilities(self, original: Any, replacement: Any) -> None:
        """What `os` says that a function can do, its stand-in can."""
        for able in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids):
            if type(original) is type(len) and original in able:
                able.add(replacement)
                self._undo.append(lambda able=able: able.discard(replacement))  # type: ignore[misc]


class _Answering:
    """A function or a class with a stand-in.

    Like the functions of C that it replaces it does not bind to instances; a class can still be asked about, inherited
    from and written in annotations.
    """

    stands_in = True

    def __init__(self, stand_in: StandIn, original: Any) -> None:
        self._original, self._stand_in = original, stand_in
        update_wrapper(self, original, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not applies():
            return self._original(*args, **kwargs)
        return self._stand_in(self._original, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_original"], name)

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, self._original)

    def __subclasscheck__(self, kind: type) -> bool:
        return issubclass(kind, self._original)

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self._original,)

    def __or__(self, other: Any) -> Any:
        return self._original | other

    def __ror__(self, other: Any) -> Any:
        return other | self._original

    def as_method(self) -> Any:
        """The same for the attribute of a class, which binds."""

        def method(*args: Any, **kwargs: Any) -> Any:
            return self(*args, **kwargs)

        update_wrapper(method, self._original, updated=())
        method.stands_in = True  # type: ignore[attr-defined]
        return method


def _first(value: Any, _: Any) -> Any:
    return value


class _Importing:
    """Finds modules as the others do, and has stand-ins put into them once they are there."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        """What the other finders find; None for modules that hold nothing to replace."""
        if name in UNIMPORTABLE and applies():
            note(f"import {name}: {UNIMPORTABLE[name]}")
            raise ImportError(f"not done while sketching: {UNIMPORTABLE[name]}", name=name)
        if name not in STAND_INS and name not in REPLACED:
            return None
        finders = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in finders)), None)
        load = getattr(getattr(spec, "loader", None), "exec_module", None)
        if spec is None or load is None:
            return spec

        def load_and_patch(module: ModuleType) -> None:
            load(module)
            self._guard.patch(module)

        with contextlib.suppress(AttributeError, TypeError):  # of the interpreter's own loaders
            setattr(spec.loader, "exec_module", load_and_patch)  # noqa: B010 - a type says that it can't be
        return spec


@contextlib.contextmanager
def guarded(scratch: Path | None = None) -> Iterator[SideEffects]:
    """Keep what runs on this thread, and on threads that it starts, from side effects; give those that it tried.

    Parameters
    ----------
    scratch
        The folder for what it writes, in a process that does nothing else. Left out, there is a temporary one, and the
        other threads of the process go on as they are.

    A guard inside of another is the same one.
    """
    global _current, _depth
    if applies():
        yield guard().effects
        return
    with contextlib.ExitStack() as stack:
        with _lock:
            if _current is None:
                _current = _made(scratch, stack)
            made = _current
            _depth += 1
            _outside.discard(threading.current_thread())
        try:
            yield made.effects
        finally:
            with _lock:
                _depth -= 1
                if not _depth:
                    _current = None
                    made.remove()
                    _outside.clear()


def _made(scratch: Path | None, stack: contextlib.ExitStack) -> Guard:
    """A guard with its stand-ins in place."""
    from foretrace.record.guard.overlay import Overlay

    for name in KNOWN:
        import_module(f"foretrace.record.guard.{name}")
    if scratch is None:
        _outside.update(
            thread
            for thread in threading.enumerate()
            if thread is not threading.current_thread() and not isinstance(thread, threading._DummyThread)
        )
    made = Guard(Overlay(stack, scratch))
    _hook()
    made.put()
    return made


def _hook() -> None:
    """Have the interpreter ask before it does anything: once, since nothing takes a hook away again."""
    global _hooked
    if not _hooked:
        _hooked = True
        sys.addaudithook(_asked)


def _asked(event: str, args: tuple[Any, ...]) -> None:
    """Refuse what no stand-in has answered."""
    if _current is None or event not in REFUSED or not applies():
        return
    action, target = REFUSED[event](args)
    if action:
        note(action, target)
        raise RefusedError(f"not done while sketching: {action.format(target)}")


Question = Callable[[tuple[Any, ...]], tuple[str, object]]
"""Given what an audit event tells: what is tried, empty where it is harmless; and with what."""
REFUSED: dict[str, Question] = {}
"""The audit events that are refused, filled by the modules that know what is harmless."""


_start = threading.Thread.start


def _start_thread(self: threading.Thread) -> None:
    """Start a thread: it is on the side of the one that starts it."""
    if applies():
        STARTED_AT[self] = place()
    elif _current is not None and not _here.trusted:
        _outside.add(self)
    _start(self)


REPLACED["threading"] = [("Thread.start", _start_thread)]
