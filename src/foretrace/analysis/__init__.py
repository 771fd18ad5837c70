"""What is read off a step: where its time goes, what it waits for, what it holds in memory, and how two steps differ.

`StepReport` is the one record for measured and predicted steps. `measure_step` fills it from a measured job; the
package `prediction` fills it from a simulated one, with the same functions.
"""

from foretrace._lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
