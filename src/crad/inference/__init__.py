"""What a frozen teacher does: run on a student's inputs, fast and without changing a bit."""
