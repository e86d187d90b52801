"""Answers: one predictor for runs and exported folders, on any engine."""
