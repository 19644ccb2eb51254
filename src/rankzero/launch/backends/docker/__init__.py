"""The docker backend: the same pods as containers of this machine. Judges and renders nothing."""
