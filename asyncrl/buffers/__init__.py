"""Between the event loop and the learner thread: bounded queues, staleness, replay. NumPy only."""
