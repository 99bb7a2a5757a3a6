"""The pipeline's own speed, measured: one module per kind of work, `run` chooses and prints."""
