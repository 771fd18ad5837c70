"""Replacing functions that have side effects by stand-ins, while a step is sketched.

While a guard is active, calls that would write a file, reach a network, start a process or signal one are answered by
stand-ins: the script goes on, and nothing happens. An audit hook is the second line of defence: it refuses what reaches
the interpreter's own functions in another way.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import traceback
import weakref
from abc import ABCMeta
from collections.abc import Callable, Iterator, Sequence
from functools import partial, update_wrapper
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from foretrace.record.guard.side_effects import STARTED_AT, SideEffects, current_thread, is_users, script_line, shown

if TYPE_CHECKING:
    from foretrace.record.guard.overlay import Overlay

StandIn = Callable[..., Any]
"""Called in place of a function: given the function, then its arguments."""
STAND_INS: dict[str, list[tuple[str, StandIn]]] = {}
"""For each module, the functions in it that are replaced while a guard is active."""
REPLACED: dict[str, list[tuple[str, Any]]] = {}
"""For each module, the attributes that have another value while a guard is active."""
UNIMPORTABLE: dict[str, str] = {}
"""Modules that have side effects when they are imported, and which."""
AS_BASE = "as_base"
"""Attribute of a stand-in for a class: gives the class that others are derived from in its place."""
STAND_IN_MODULES = ("files", "network", "processes", "savers", "c_functions")
SAME_MODULES = {"os": "posix", "io": "_io", "socket": "_socket"}
"""Modules in C that have the same functions by other names."""


class RefusedError(PermissionError):
    """A side effect that was refused, since nothing could stand in for it."""


def stands_in_for(*names: str) -> Callable[[StandIn], StandIn]:
    """Register a stand-in for functions or methods, each named as ``module:function`` or ``module:Class.method``."""

    def register(stand_in: StandIn) -> StandIn:
        for name in names:
            module, _, attribute = name.partition(":")
            for each in filter(None, (module, SAME_MODULES.get(module))):
                STAND_INS.setdefault(each, []).append((attribute, stand_in))
        return stand_in

    return register


def does_nothing(action: str, target: int | str | None = None, gives: Any = None) -> StandIn:
    """A stand-in that notes a call and returns ``gives``, or what calling that gives.

    The action has ``{}`` where its target goes: the argument at a position, or of a name.
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


class Inert:
    """An object whose methods do nothing and return one value; stands in for processes, writers and connections.

    >>> process = Inert(0, pid=7)
    >>> process.pid, process.wait(timeout=1)
    (7, 0)
    """

    _returns: Any = None

    def __init__(self, returns: Any = None, **attributes: Any) -> None:
        self.__dict__.update(attributes, _returns=returns)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: self._returns

    def __enter__(self) -> Inert:
        return self

    def __exit__(self, *failure: object) -> None:
        pass


class _ThreadState(threading.local):
    trusted = 0
    """Depth of calls whose side effects are allowed, as those of stand-ins."""
    quiet = 0
    """Depth of calls that were noted as a whole."""
    elsewhere = 0
    """Depth of calls that another process would make."""


_thread = _ThreadState()
_outside: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
"""Threads of the caller's own program: not guarded."""
_lock = threading.RLock()
_current: Guard | None = None
_depth = 0
_hooked = False


def guard() -> Guard:
    """The active guard, for stand-ins."""
    assert _current is not None
    return _current


def applies() -> bool:
    """Whether a guard is active on this thread."""
    if _current is None or _thread.trusted:
        return False
    return not _outside or current_thread() not in _outside


@contextlib.contextmanager
def _deeper(counter: str) -> Iterator[None]:
    setattr(_thread, counter, getattr(_thread, counter) + 1)
    try:
        yield
    finally:
        setattr(_thread, counter, getattr(_thread, counter) - 1)


trusted = partial(_deeper, "trusted")
"""A context in which this thread's side effects are allowed."""
quietly = partial(_deeper, "quiet")
"""A context in which side effects are redirected and refused, but not noted: the whole was noted."""

elsewhere = partial(_deeper, "elsewhere")
"""A context for work that another process would do, as a loader's worker: it is no part of the step."""


def is_elsewhere() -> bool:
    """Whether this thread does the work of another process."""
    return _thread.elsewhere > 0


def note(action: str, target: object = "", seen: bool = False) -> None:
    """Note a side effect with the line of the script that tried it; ``seen`` where the script finds it done."""
    if not seen:
        guard().effects.answered += 1
    if not _thread.quiet:
        guard().effects.add(action, target, script_line())


class Guard:
    """Installs stand-ins, and removes them again."""

    def __init__(self, files: Overlay) -> None:
        self.effects = SideEffects()
        self.files = files
        self._undo: list[Callable[[], None]] = []
        self._importing = _Importing(self)

    def install(self) -> None:
        """Install all stand-ins, those of modules that are not imported yet when they are."""
        for module in {*STAND_INS, *REPLACED} & set(sys.modules):
            self.patch(sys.modules[module])
        sys.meta_path.insert(0, self._importing)

    def remove(self) -> None:
        """Restore the original functions."""
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self._importing)
        while self._undo:
            self._undo.pop()()

    def patch(self, module: ModuleType) -> None:
        """Install the stand-ins of one module."""
        for path, stand_in in STAND_INS.get(module.__name__, ()):
            self._swap(module, path, partial(Replacement, stand_in))
        for path, value in REPLACED.get(module.__name__, ()):
            self._swap(module, path, partial(_other_value, value))

    def _swap(self, owner: Any, path: str, made: Callable[[Any], Any]) -> None:
        *outer, name = path.split(".")
        for part in outer:
            owner = getattr(owner, part, None)
        original = getattr(owner, name, None)
        if original is None or getattr(original, "stands_in", False):
            return  # this Python, or this version of a library, does not have it; or it was put there by another name
        own = vars(owner).get(name)
        replacement = made(original)
        if isinstance(owner, type) and isinstance(replacement, Replacement):
            replacement = replacement.as_method()
        try:
            setattr(owner, name, replacement)
        except (AttributeError, TypeError):  # a type of C
            return
        self._undo.append(partial(delattr, owner, name) if own is None else partial(setattr, owner, name, own))
        # What `os` says that a function can do, its stand-in can.
        for able in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids):
            if type(original) is type(len) and original in able:
                able.add(replacement)
                self._undo.append(partial(able.discard, replacement))


class Replacement:
    """What replaces a function or a class: calls the stand-in where the guard is active, and the original elsewhere.

    Like the functions of C that it replaces it does not bind to instances; a class still works in `isinstance`, as a
    base class and in annotations.
    """

    stands_in = True

    def __init__(self, stand_in: StandIn, original: Any) -> None:
        self._original, self._stand_in = original, stand_in
        update_wrapper(self, original, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call one of the two."""
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
        as_base = getattr(self._stand_in, AS_BASE, None)
        return (as_base() if as_base and applies() else self._original,)

    def __or__(self, other: Any) -> Any:
        return self._original | other

    def __ror__(self, other: Any) -> Any:
        return other | self._original

    def as_method(self) -> Any:
        """The same as a method, which binds."""

        def method(*args: Any, **kwargs: Any) -> Any:
            return self(*args, **kwargs)

        update_wrapper(method, self._original, updated=())
        method.stands_in = True  # type: ignore[attr-defined]
        return method


class StandInClass(ABCMeta):
    """The metaclass of a class that replaces its base, one of C. Instances of the base pass for its own.

    Unlike a `Replacement`, such a class can be a base class of others, and be registered.
    """

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls._checked()) or super().__instancecheck__(instance)

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, cls._checked()) or super().__subclasscheck__(kind)

    def _checked(cls) -> Any:
        return cls.__base__ if "stands_in" in vars(cls) else ()


def _other_value(value: Any, original: Any) -> Any:
    return value


class _Importing:
    """An import finder that installs the stand-ins of a module once it is loaded."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        """The spec from the other finders; None for modules without stand-ins."""
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
    """Prevent side effects of this thread, and of threads that it starts; gives those that were tried.

    What is written goes to ``scratch``, in a process that does nothing else. Without it there is a temporary folder,
    and the other threads of the process are not guarded. A guard inside of another is the same one.
    """
    global _current, _depth
    if applies():
        yield guard().effects
        return
    with contextlib.ExitStack() as stack:
        with _lock:
            if _current is None:
                _current = _installed(scratch, stack)
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


def _installed(scratch: Path | None, stack: contextlib.ExitStack) -> Guard:
    global _hooked
    from foretrace.record.guard.overlay import Overlay

    for name in STAND_IN_MODULES:
        import_module(f"foretrace.record.guard.{name}")
    if scratch is None:
        _outside.update(
            thread
            for thread in threading.enumerate()
            if thread is not threading.current_thread() and not isinstance(thread, threading._DummyThread)
        )
    made = Guard(Overlay(stack, scratch))
    if not _hooked:  # an audit hook can't be removed
        _hooked = True
        sys.addaudithook(_audit)
    made.install()
    return made


def _audit(event: str, args: tuple[Any, ...]) -> None:
    """Refuse a side effect that no stand-in has replaced."""
    if _current is None or event not in REFUSED or not applies():
        return
    action, target = REFUSED[event](args)
    if action:
        note(action, target)
        raise RefusedError(f"not done while sketching: {action.format(target)}")


AuditCheck = Callable[[tuple[Any, ...]], tuple[str, object]]
"""From the arguments of an audit event: the action, empty for a harmless one; and its target."""
REFUSED: dict[str, AuditCheck] = {}
"""The audit events that are refused, filled by the modules with stand-ins."""


_start = threading.Thread.start


def _start_thread(self: threading.Thread) -> None:
    """Start a thread: guarded where the one that starts it is."""
    if applies():
        STARTED_AT[self] = script_line()
    elif _current is not None and not _thread.trusted:
        _outside.add(self)
    _start(self)


_thread_failed = threading.excepthook


def _note_failed_thread(args: Any) -> None:
    """A thread of the script has failed: noted, since what follows from it may be seen elsewhere."""
    if not applies() or args.thread not in STARTED_AT:
        _thread_failed(args)
        return
    frames = [frame for frame in traceback.extract_tb(args.exc_traceback) if is_users(frame.filename)]
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else STARTED_AT[args.thread]
    reason = str(args.exc_value).partition("\n")[0]
    guard().effects.failed.append(f"{place} ({args.exc_type.__name__}: {reason})")


REPLACED["threading"] = [("Thread.start", _start_thread), ("excepthook", _note_failed_thread)]
