"""The Slurm backend: a run is a batch script for sbatch, and squeue and its nodes say how it is. Judges nothing."""
