"""Files: where they are found, and how they are decoded."""
