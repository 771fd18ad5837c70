"""torch.compile in a sketch: the programs that TorchInductor would generate for a GPU, call by call."""
