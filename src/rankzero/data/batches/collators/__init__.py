"""How the rows of a pass become tensors; one file for each way. Imports torch."""
