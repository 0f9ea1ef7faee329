"""One module per question; each says what it needs."""
