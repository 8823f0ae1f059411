"""``python -m selfspec`` is ``selfspec``."""

import sys

from .cli.main import main

sys.exit(main())
