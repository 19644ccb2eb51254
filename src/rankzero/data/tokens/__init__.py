"""Conversations as text and as token ids, with what is trained. Knows no file and no cache."""
