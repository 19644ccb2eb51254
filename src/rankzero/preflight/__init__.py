"""What can be seen of a run before anything large is imported: its paths, its model's files, its run directory."""
