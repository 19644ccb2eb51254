"""Training. Imports torch; nothing light may import it."""

import os

import rankzero.model  # noqa: F401  before peft: it quiets what peft imports

# Before torch loads OpenMP. How long a thread spins before it sleeps while it waits for the others: by default so long
# that a shared machine (another process, a container's CPU quota) computes several times slower than with this, which
# costs an idle one two per cent. A user's own setting wins.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
