"""What ranges are: from the 10th to the 90th percentile."""

TENTH = 1.2816
"""Standard deviations from the middle to the 10th and the 90th percentile."""
