"""`python -m supple` is `supple`."""

import sys

from supple.cli import main

sys.exit(main())
