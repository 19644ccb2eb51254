"""rankzero: fine-tune language models from one run spec. Holds the version and nothing else."""

__version__ = "0.1.0"
