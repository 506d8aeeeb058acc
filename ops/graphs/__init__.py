"""What one run does to one table: functions over the resources, called by assets, jobs and the command line."""
