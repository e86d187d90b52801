"""Data: files decoded, sets read and split, samples in batches. The sets by name are in `registry.py`."""
