"""Cost models: what the calls, kernels and collectives of a step take on a platform, in microseconds.

`kernels` prices kernels by family, `host` the host time T1 to T5 of calls, `collectives` communication on a fabric.
"""

from foretrace._lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
