"""One training run: wiring, logging, evaluation, checkpoints, presets. Usable from Python."""
