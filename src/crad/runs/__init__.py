"""What one run leaves: its directory, records, checkpoints, selected round, summary, callbacks."""
