"""Data files of one format as files of another."""
