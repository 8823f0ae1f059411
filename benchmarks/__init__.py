"""Measurements of speed, memory and quality, run from the repository's root as ``python -m benchmarks.NAME``."""

from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results"
"""The JSON files that the tables are made of."""
