"""Accelerators and the host, as observed."""
