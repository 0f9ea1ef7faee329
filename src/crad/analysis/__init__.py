"""Numbers from the records of finished runs: comparisons, intervals, series. Nothing is drawn here."""
