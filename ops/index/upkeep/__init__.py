"""The life of versions: reports, lag, history, retention, garbage."""
