"""What a run looks like: its curves as pictures, and one page with the whole story."""

from supple.reporting.page import page, write_report

__all__ = ["page", "write_report"]
