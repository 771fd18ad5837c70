"""Watching a live job, sketching one that never runs, and recordings on disk."""

from foretrace._deprecated import keep_callable

keep_callable(__name__)
