"""What one run does to one table: functions that assets, jobs and the command line call."""
