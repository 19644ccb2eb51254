"""A run directory's copies elsewhere: in object stores as it trains, and brought back. Knows no training, no pods."""
