"""Cutting a traced network: where it can be cut, and what lives there."""
