"""`python -m supple` is `supple`."""

import sys

from supple.cli import run

sys.exit(run())
