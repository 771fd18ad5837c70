"""Fusion: many calls, launches or collectives as few."""
