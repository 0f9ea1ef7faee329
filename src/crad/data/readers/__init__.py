"""Read samples: one file per format, and arrays in memory."""
