"""Training. Imports torch; nothing light may import it."""

import os

# Before torch loads OpenMP. Threads that spin while they wait for each other are slightly faster on an idle machine and
# several times slower on a shared one (another process, a container's CPU quota); a user's own setting wins.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
