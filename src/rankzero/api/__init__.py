"""What is called from Python, and what the command line calls. No terminal here: values go in and out, errors are
those of errors.py. `rankzero/__init__.py` names what is public."""
