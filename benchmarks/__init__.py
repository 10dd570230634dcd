"""Benchmarks: see `python -m benchmarks`."""
