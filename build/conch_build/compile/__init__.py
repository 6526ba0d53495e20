"""Quantized checkpoint -> engine, one module a backend."""
