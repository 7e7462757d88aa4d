"""Ways to compute."""
