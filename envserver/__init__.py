"""The env server: it owns lanes on a worker machine. No torch, and no grpc in its lane processes."""
