"""Host time."""
