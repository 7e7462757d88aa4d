"""What is seen: the HTTP interfaces, the dashboard, the command line."""
