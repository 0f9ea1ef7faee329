"""Pages, tables and charts for people, from the records of runs; models are never touched."""
