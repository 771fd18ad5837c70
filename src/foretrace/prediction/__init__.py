"""Predictions of step times: ranks measured or priced, simulated together, and reported.

Job ─▶ RankModel (measured | priced), one per rank ─▶ TaskGraph ─▶ Timeline ─▶ StepReport
"""

from foretrace._lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__)
