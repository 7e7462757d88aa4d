"""What computes: supervisor, runner processes, devices, engines."""
