"""What the same machine gives without the framework: the figures that ours are divided by."""
