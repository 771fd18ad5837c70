"""Recording training jobs.

`watch` records a live job, `sketch` traces a step that never runs, `recording` reads recordings back, and `folder`
knows their files. `script` sketches a script in a process of its own, behind `guard`.
"""

from foretrace._lazy import keep_callable, lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)

keep_callable(__name__)
