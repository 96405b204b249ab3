"""`python -m leadscrew`, for where no script is installed."""

import sys

from leadscrew.cli import main

sys.exit(main())
