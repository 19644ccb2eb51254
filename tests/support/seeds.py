"""How many draws of each fault a test makes: one, or as many as SEEDS says (`make faults SEEDS=20`)."""

from __future__ import annotations

import os

SEEDS = int(os.environ.get("SEEDS", "1"))
