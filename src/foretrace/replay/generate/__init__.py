"""Writing a benchmark from a graph: plan, contents of inputs, code, folder."""
