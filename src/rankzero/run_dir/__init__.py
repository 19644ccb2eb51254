"""The run directory: the on-disk contract between training, resuming, reporting and launching. Stdlib only."""
