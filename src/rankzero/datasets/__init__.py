"""Data sets that need more than an adapter: raw trajectories and images in, rows that `messages` reads out."""
