"""Images of rows: where they may lie, how they are found by name, whether they can be decoded. No Pillow at import."""
