"""Show progress, tables and endings in a terminal."""
