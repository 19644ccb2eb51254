"""The Kubernetes backend: objects and bytes to and from a cluster. Judges and renders nothing."""
