"""What a process shares and how much it may use: memory, threads, caches, locks, temporary files."""
