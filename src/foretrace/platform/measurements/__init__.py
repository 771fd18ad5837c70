"""Raw measurements of a machine: the files in the folder ``raw/`` of a platform.

`cases` are the calls to measure, `kernels`, `host` and `fabric` what was measured of each part, `journal` the
append-only files that hold it. What calibrates writes them, what fits cost models reads them; neither torch nor the
machine is needed.
"""

from foretrace._lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
