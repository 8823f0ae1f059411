"""benchmarks/ is not installed: its scripts import each other as the folder's modules, and so do these tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
