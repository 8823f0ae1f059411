"""``python -m selfspec`` is ``selfspec``."""

import sys

from .cli import main

sys.exit(main())
