"""Structure of a step: depth, checkpointing, attention implementation, optimizer, inserted and removed ops."""
