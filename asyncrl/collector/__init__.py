"""The loop side of a run: what the lanes send becomes forwards and unrolls. No torch here."""
