"""A search over a run spec's fields: what is tried, the trials as runs, and what came of them."""
