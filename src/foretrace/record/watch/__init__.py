"""Recording a live training job: the watched step, its profile, and the sessions that decide which step is which."""
