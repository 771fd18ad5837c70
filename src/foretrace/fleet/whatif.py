"""What would save a fleet the most hours."""

from __future__ import annotations

import numpy as np

from foretrace.fleet.record import StepRecord
from foretrace.fleet.response import StepResponse


def response_of(record: StepRecord) -> StepResponse:
    """How a recording's step responds to faster or slower parts."""
    return StepResponse(np.array(record.response))
