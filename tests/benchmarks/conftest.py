"""Scripts of `benchmarks/` import each other by name, as they lie in one folder."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
