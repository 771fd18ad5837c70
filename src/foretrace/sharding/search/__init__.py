"""Search for the fastest sharding plan that fits the memory of the ranks."""
