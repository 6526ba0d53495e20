"""Checkpoint -> quantized checkpoint -> engine -> Triton model repository. Knows nothing of serving."""
