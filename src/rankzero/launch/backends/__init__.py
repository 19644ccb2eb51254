"""Places that run pods, each behind the protocol of launch/backend.py; imported when one is used."""
