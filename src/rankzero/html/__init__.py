"""Pages that need nothing else: one file, no script, no network. How they look, and how values in them are harmless."""
