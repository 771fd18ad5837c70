"""Kernel times: a step's calls are priced by lookup of exact measurements, by the model of their family, or by a
roofline.

`families` holds the kernel families, one file each; `pricing` prices a step; `model` and `fitting` are the fitted
models and how they are made, with the `estimators` they choose from and `selection` for libraries' kernels;
`cross_device` scales times to GPUs that were not calibrated.
"""

from foretrace._lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
