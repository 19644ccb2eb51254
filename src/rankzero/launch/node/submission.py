"""What one submission gives to its pods and to nobody else: a secret, and a name made from it. Sends nothing."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping

from rankzero.launch.node.channel import Message
from rankzero.launch.node.settings import TOKEN_VARIABLE


class Submission:
    """Pods of one submission know each other by it. Without a token (`kubectl apply`) all are of the same one."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._key = env.get(TOKEN_VARIABLE, "").encode()

    @property
    def name(self) -> str:
        """Tells submissions apart in files, without telling the secret; empty where there is none."""
        return hashlib.sha256(b"rankzero submission " + self._key).hexdigest()[:16] if self._key else ""

    def proof(self, challenge: str, hello: Message) -> str:
        """What only a pod of this submission can answer to a challenge, and what it says with that."""
        said = json.dumps([challenge, hello], sort_keys=True).encode()
        return hmac.new(self._key, said, hashlib.sha256).hexdigest()

    def accepts(self, challenge: str, hello: Message, proof: object) -> bool:
        """Whether the proof is right."""
        return isinstance(proof, str) and hmac.compare_digest(self.proof(challenge, hello).encode(), proof.encode())
