"""Dtypes of a step: one floating dtype for everything, or autocast."""
