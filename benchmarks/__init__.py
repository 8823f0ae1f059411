"""Measurements of speed, memory and quality, run from the repository's root as ``python -m benchmarks.NAME``."""
