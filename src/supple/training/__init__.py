"""Training: the one loop, what it is built from, and what it leaves behind."""
