"""Measurements: `python -m bench` prints a report. Nothing here is a test, and no test asserts a time."""
