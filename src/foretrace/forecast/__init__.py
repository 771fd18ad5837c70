"""From graphs to answers: what a step took and why."""
