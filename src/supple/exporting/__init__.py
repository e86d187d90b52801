"""Export: every point of a run as a graph for a fast runtime, checked before it is written."""

from supple.exporting.write import Wanted, export

__all__ = ["Wanted", "export"]
