"""Platforms: what a step is predicted on. Devices, hosts and fabrics as files, measured apart and combined freely.

`load_platform` finds one by name, folder or parts (`registry`); `hypothetical` scales kernel times to GPUs that were
not calibrated; `measurements` are the raw files that `foretrace.calibration` writes and cost models are fitted on.
``data/`` holds the shipped descriptions, links, fabrics and platforms.

To add a machine: write ``data/devices/<name>.json`` from the GPU's datasheet, with the fields of `Device`; kernel times
are then scaled to it. For its interconnect, ``data/links/<name>.json`` with the fields of `Links`. Tests find both by
themselves. ``foretrace calibrate`` measures a machine that is at hand, which is better and needs neither.
"""

from foretrace._lazy import keep_callable, lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)

keep_callable(__name__)
