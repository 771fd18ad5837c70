"""Collectives."""
