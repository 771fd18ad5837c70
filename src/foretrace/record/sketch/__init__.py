"""Sketching a training step that never runs: fake tensors, a pretended GPU and a pretended process group."""
