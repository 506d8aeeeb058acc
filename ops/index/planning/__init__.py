"""Plans and estimates: what a run is to do for a snapshot, and what it will take."""
