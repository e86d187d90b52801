"""Sounds: decoding, spectra, readers."""
