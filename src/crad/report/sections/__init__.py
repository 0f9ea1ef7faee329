"""Hold the parts of a report page."""
