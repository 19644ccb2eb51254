"""Pages that need nothing else: one file, no script, no network. How they look, and how values in them are harmless."""

GENERATOR = '<meta name="generator" content="rankzero '
"""What pages of all kinds have in their head, as the template has it."""
