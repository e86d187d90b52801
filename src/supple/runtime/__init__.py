"""Running points: timing them, and the machine they are timed on."""
