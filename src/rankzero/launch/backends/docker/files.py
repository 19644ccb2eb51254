"""Files on this machine that containers mount: the run's configuration, and where they leave their last words."""

from __future__ import annotations

import base64
import os
import shutil
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from rankzero.launch.backends.docker.evidence import MOST_MESSAGE_BYTES
from rankzero.launch.labels import Manifest
from rankzero.launch.node.settings import says_to_test
from rankzero.run_dir.atomic import storage_errors


def state_dir(env: Mapping[str, str]) -> Path:
    """Where all of it is: below $XDG_STATE_HOME."""
    base = env.get("XDG_STATE_HOME") or os.path.join(env.get("HOME") or os.path.expanduser("~"), ".local", "state")
    return Path(base) / "rankzero" / "docker"


class RunFiles:
    """The files of one run."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def config(self, pod: str, volume: str) -> Path:
        """The directory that a pod mounts for a ConfigMap volume."""
        return self.root / "config" / pod / volume

    def termination(self, pod: str) -> Path:
        """The file that a pod mounts as its termination log."""
        return self.root / "termination" / pod

    def environment(self, pod: str) -> Path:
        """The file that docker reads a container's variables from, there for that moment only."""
        return self.root / f"environment-{pod}"

    def write_config(self, pod: str, volume: Mapping[str, Any], config_map: Manifest) -> Path:
        """Lay a ConfigMap out as its volume says. Any user may read it, if it is let into the state directory."""
        directory = self.config(pod, volume["name"])
        with storage_errors(directory):
            self._private()
            if directory.exists():
                shutil.rmtree(directory)
            directory.mkdir(parents=True)
            directory.chmod(0o755)
            for path, content in _files(volume["configMap"], config_map).items():
                target = directory.joinpath(*PurePosixPath(path).parts)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
                target.chmod(0o644)
            for parent in directory.rglob("*"):
                if parent.is_dir():
                    parent.chmod(0o755)
        return directory

    def is_told_to_test(self, pod: str) -> bool:
        """Whether a pod was told to test its place, and so leaves no results. What cannot be read does not say so."""
        try:
            told = [path.read_text(encoding="utf-8") for path in (self.root / "config" / pod).glob("*/node.json")]
            return any(map(says_to_test, told))
        except (OSError, KeyError, TypeError, ValueError):
            return False

    def fresh_termination(self, pod: str) -> Path:
        """An empty file that any user may write."""
        path = self.termination(pod)
        with storage_errors(path):
            self._private()
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"")
            path.chmod(0o666)
        return path

    def write_environment(self, pod: str, values: Mapping[str, str]) -> Path:
        """Readable by this user alone, from the first byte on."""
        path = self.environment(pod)
        with storage_errors(path):
            self._private()
            path.unlink(missing_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.writelines(f"{name}={value}\n" for name, value in values.items())
        return path

    def remove(self) -> bool:
        """Remove them all. Whether there were any."""
        if not self.root.exists():
            return False
        with storage_errors(self.root):
            shutil.rmtree(self.root)
        return True

    def _private(self) -> None:
        """A run's spec is nobody else's business on a machine of several users."""
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)


def read_message(path: str) -> str:
    """What a container left; nothing where the file is not on this machine."""
    try:
        with open(path, "rb") as file:
            return file.read(MOST_MESSAGE_BYTES).decode("utf-8", errors="replace")
    except FileNotFoundError:
        return ""


def _files(source: Mapping[str, Any], config_map: Manifest) -> dict[str, bytes]:
    """Path → content."""
    contents = {key: text.encode() for key, text in (config_map.get("data") or {}).items()}
    contents |= {key: base64.b64decode(text) for key, text in (config_map.get("binaryData") or {}).items()}
    items = source.get("items")
    paths = {key: key for key in contents} if items is None else {item["key"]: item["path"] for item in items}
    return {path: contents[key] for key, path in paths.items()}
