"""Files: where they lie, how they are fetched, and their rows as chunks of JSON lines."""
