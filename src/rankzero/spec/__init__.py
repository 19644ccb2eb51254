"""The run spec (what) and the cluster spec (where). Pydantic and stdlib only."""
