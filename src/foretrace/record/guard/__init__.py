"""Keeping what is sketched from side effects: stand-ins for what has them, an audit hook, and the kernel's Landlock."""

from foretrace.record.guard.guard import RefusedError, guarded
from foretrace.record.guard.landlock import restrict
from foretrace.record.guard.side_effects import SideEffects

__all__ = ["RefusedError", "SideEffects", "guarded", "restrict"]
