"""What runs a benchmark. Copied as it is into each one: it needs torch, and nothing of Foretrace."""
