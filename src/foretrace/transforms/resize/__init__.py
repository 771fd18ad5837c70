"""Sizes of a step: a size changes in the inputs, and `propagation` propagates it through every call."""
