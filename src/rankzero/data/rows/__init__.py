"""Rows: from a line of JSON to a conversation, whatever its shape. Knows no file, no tokenizer."""
