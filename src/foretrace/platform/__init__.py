"""Platforms: what a step is predicted on. Devices, hosts and fabrics as files, measured apart and combined freely.

`load_platform` finds one by name, folder or parts (`registry`); `hypothetical` scales kernel times to GPUs that were
not calibrated; `measurements` are the raw files that `foretrace.calibration` writes and cost models are fitted on.
``data/`` holds the shipped descriptions, links, fabrics and platforms.
"""

from foretrace._deprecated import keep_callable
from foretrace._lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)

keep_callable(__name__)
