"""Real servers, real lanes, real faults; each test is named after the row of the fault matrix that it plays."""
