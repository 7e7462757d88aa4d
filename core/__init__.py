"""What is true: pure values and functions. No I/O, no clock, no ids, no logging."""
