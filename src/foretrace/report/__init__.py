"""Terminal tables and stable JSON."""
