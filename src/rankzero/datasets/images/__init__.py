"""Images of raw data sets: found by name in folders, archives and tables, and brought below one folder."""
