"""Crowds: pictures, perhaps with sound, and where the heads are."""
