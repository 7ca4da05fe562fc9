"""States of simulators, kept in a lane's process: captured, restored, looked ahead from, exported."""
