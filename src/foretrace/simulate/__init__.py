"""Tasks, lanes and edges in arrays: timelines and critical paths."""
