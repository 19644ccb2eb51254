"""DeepSpeed's ZeRO: its configuration, its engine, and what the loop asks of it."""
