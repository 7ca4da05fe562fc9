"""The training side: lanes, fleets, and the only importers of gRPC there."""
