"""Rows that are tokenised while they are trained on, for sources that fit no disk."""
