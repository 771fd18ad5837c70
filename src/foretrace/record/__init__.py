"""Watching a live job, sketching one that never runs, and recordings on disk."""
