"""Hostile bytes in quantity: `python -m tests.fuzz` or `make fuzz`."""
