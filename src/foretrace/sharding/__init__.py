"""Placing embedding tables on ranks: tables, plans, what they cost, and the search for the fastest that fits."""
