"""One small adapter for each tracker. Nothing of the run."""
