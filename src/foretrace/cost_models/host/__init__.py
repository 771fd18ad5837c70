"""Host overhead of calls: T1 between calls; inside them T2 before the first launch, T3 after the last, T4 in
each (launch overhead), T5 between them. Prices of a step's calls, and their fit to a calibration."""

from foretrace._lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
