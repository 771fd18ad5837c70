"""Recording a live training job.

`Watch` records the calls of a step, `LightProfile` its times, `IndexWatch` its lookups; the `Recorder` uses each step
of a job for one of them, by its `Schedule`. Jobs are recorded from Python (`record_step`, `recording`) or by `launch`.
"""

from foretrace._lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
