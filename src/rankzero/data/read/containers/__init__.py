"""Readers of the kinds of file that hold rows; each gives its rows as JSON with their numbers."""
