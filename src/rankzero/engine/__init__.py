"""Training. Imports torch; nothing light may import it."""

import os

import rankzero.model  # noqa: F401  before peft: it quiets what peft imports

# Before torch loads OpenMP. How long a thread spins before it sleeps while it waits for the others: by default so long
# that a shared machine (another process, a container's CPU quota) computes several times slower than with this, which
# costs an idle one two per cent (some virtual ones a third, where a step has one pass at a time). A user's own setting
# wins.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

# How many kernels for products of one shape each are kept, by torch and by oneDNN within it: a quarter of a megabyte
# apiece, by default a thousand. Passes differ in length, so most are never asked for again; a pass has some thirty.
for _capacity in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
    os.environ.setdefault(_capacity, "64")

# Before torch takes memory of a GPU. Passes differ in length, so blocks of fixed sizes leave holes behind that nothing
# fits into; segments that grow do not: of 104 GiB on an H200 they reserved 1.5 % more. A user's own setting, under
# either name, wins.
if not {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"} & os.environ.keys():
    os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
