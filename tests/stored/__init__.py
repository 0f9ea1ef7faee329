"""What earlier versions have written, kept for tests/test_stored.py."""
