"""Kernel times."""
