"""Edits of a step: each a function from a graph to a graph, in a file of its own."""
