"""The wire: what both machines share. NumPy and protobuf only; no I/O anywhere in this room."""
