"""``python -m benchmarks.peers``."""

import sys

from .command import main

sys.exit(main())
