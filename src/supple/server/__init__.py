"""Answers over HTTP, within deadlines: under load they become cheaper before they are refused."""
