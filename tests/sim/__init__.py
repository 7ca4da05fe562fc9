"""The client and the env server on a simulated clock and network."""
