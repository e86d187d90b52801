"""When a sample stops: policies, and how their thresholds are fitted. Numpy alone: an exported folder needs no more."""
