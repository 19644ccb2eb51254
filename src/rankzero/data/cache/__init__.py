"""Tokenised rows on disk: made once for each content, tokenizer and set of rules, and selected from."""
