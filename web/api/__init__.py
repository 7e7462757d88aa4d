"""The native JSON API."""
