"""Host time of calls: T1 between calls, T2 to T5 inside them; prices of a step's calls, and their fit to a
calibration."""

from foretrace._lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
