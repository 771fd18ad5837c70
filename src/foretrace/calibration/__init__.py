"""Calibration: measuring a machine into a platform, and fitting the platform's cost models.

`calibrate` measures this machine, part by part; `timing` and `host` do the measuring, with torch, numpy and the
standard library only, so that they run in training images. `fitting` makes a platform from raw measurements, without
the machine; `fabric` imports logs of nccl-tests and the collectives of recorded jobs.
"""

from foretrace._lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
