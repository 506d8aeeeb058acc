"""Search of an index version: in this process, or by tasks."""
