"""`python -m rankzero.engine.smoke RUN.json`: a process of a smoke test, as a launcher starts it."""

from rankzero.engine.process import process
from rankzero.engine.smoke.check import smoke

if __name__ == "__main__":
    process(smoke)
