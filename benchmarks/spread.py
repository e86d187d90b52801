"""Means over seeds: with their deviation, and with the 95 % interval of a paired difference."""

import math
import statistics
from collections.abc import Sequence

T95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # Student's t, two-sided, by number of seeds


def spread(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values):.2f}" + (f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else "")


def interval(values: Sequence[float]) -> str:
    mean = statistics.fmean(values)
    if len(values) not in T95:
        return f"{mean:+.2f}"
    return f"{mean:+.2f} ± {T95[len(values)] * statistics.stdev(values) / math.sqrt(len(values)):.2f}"
