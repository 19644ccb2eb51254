"""Files to rows to tokens to batches. No torch before loader.py; nothing of models."""
