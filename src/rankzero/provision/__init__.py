"""Clusters made at a provider by its own programs, step by step, and taken down again. Knows no run."""
