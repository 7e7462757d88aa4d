"""What is remembered: journal, projections, leases, contents, models."""
