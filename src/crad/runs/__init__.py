"""What comes out of a run: its directory, the selected round, summary, tables, pictures, the report.

Everything here reads records, never models.
"""
