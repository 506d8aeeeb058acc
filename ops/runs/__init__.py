"""One run on one table: the functions that assets, jobs and the command line call."""
