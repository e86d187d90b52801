"""What a run looks like: its curves as pictures, and one page with the whole story."""

from supple.report.page import page, write_report

__all__ = ["page", "write_report"]
