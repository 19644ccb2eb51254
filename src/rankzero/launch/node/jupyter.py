"""Jupyter in a warm pod: one server, on the pod's loopback, that outlives what `dev run` runs. Makes no token.

`python -m rankzero.launch.node.jupyter ROOT PLACE start LENGTH` reads a token of so many bytes, starts a server in
ROOT/PLACE where none runs, waits until it listens, and prints a line of JSON: its port, first page and token, or that
Jupyter is absent. ROOT/jupyter has all that the server writes for itself; nobody but the pod's user may read it.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rankzero.launch.node.group import Order, begin, end_group, leads

PLACE = "jupyter"
"""Below the root: a group of its own, which `dev run` does not end."""
PROGRAMS = {"jupyterlab": "lab", "notebook": "tree{work}", "jupyter_server": ""}
"""Modules that are servers, the best first, and the page that they begin with. The last has none: editors connect."""
LISTEN_SECONDS = 60.0
"""The longest until it listens."""
_POLL_SECONDS = 0.1
_PLACES = {
    "JUPYTER_TOKEN_FILE": "token",
    "JUPYTER_RUNTIME_DIR": "runtime",
    "JUPYTER_CONFIG_DIR": "config",
    "IPYTHONDIR": "ipython",
}
"""Variables, and the places below ROOT/jupyter that they name."""
_SILENT = ("--LabApp.news_url=None", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate")
"""JupyterLab asks its makers for news otherwise."""


class NotListeningError(Exception):
    """A server was started and cannot be used."""


def start(root: Path, work: Path, token: str) -> dict[str, Any]:
    """The server that runs, whatever its token, or a new one. Raises NotListeningError or OSError."""
    home = root / PLACE
    home.mkdir(parents=True, exist_ok=True)
    home.chmod(0o700)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two may ask at once
        return _there(home) or _started(home, work, token)


def _there(home: Path) -> dict[str, Any] | None:
    note = home / "server.json"
    if not note.is_file() or leads(home) is None:
        return None
    found: dict[str, Any] = json.loads(note.read_text(encoding="utf-8"))
    return {**found, "token": (home / "token").read_text(encoding="utf-8")}


def _started(home: Path, work: Path, token: str) -> dict[str, Any]:
    module = next(filter(find_spec, PROGRAMS), None)
    if module is None:
        return {"absent": True}
    end_group(home)  # one that never listened, or kernels of one that is gone
    (home / "server.json").unlink(missing_ok=True)
    port = _free_port()
    with _private(home / _PLACES["JUPYTER_TOKEN_FILE"]) as file:
        file.write(token.encode())
    _let_notebooks_import(home, work)
    work.mkdir(parents=True, exist_ok=True)
    with _private(home / "log") as log:
        process, _ = begin(home, Order(_command(module, port, work), _env(home)), work, output=log)
    try:
        _wait(process, port)
    except NotListeningError as error:
        end_group(home, meanwhile=process.poll)
        said = (home / "log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise NotListeningError(f"{error}; {said[-1] if said else 'it said nothing'} ({home / 'log'})") from None
    note = {"port": port, "page": PROGRAMS[module].format(work=work)}
    (home / "server.json").write_text(json.dumps(note), encoding="utf-8")
    return {**note, "token": token, "started": True}


def _command(module: str, port: int, work: Path) -> list[str]:
    """Without the token: who may list processes reads it. -P: files that were sent stand for no module of Jupyter."""
    settings = {
        "ip": "127.0.0.1",
        "port": port,
        "port_retries": 0,
        "open_browser": False,
        "allow_root": True,  # the cluster says who a pod's user is
        "root_dir": "/",  # volumes are to be seen, too
        "preferred_dir": work,
    }
    flags = [f"--ServerApp.{name}={value}" for name, value in settings.items()]
    return [sys.executable, "-P", "-m", module, *flags, *(_SILENT if module == "jupyterlab" else ())]


def _env(home: Path) -> dict[str, str]:
    """Kernels inherit it."""
    own = {name: str(home / place) for name, place in _PLACES.items()}
    return {"JUPYTER_TOKEN": "", **own}


def _let_notebooks_import(home: Path, work: Path) -> None:
    """The modules that were sent, from notebooks in any directory."""
    startup = home / _PLACES["IPYTHONDIR"] / "profile_default" / "startup"
    startup.mkdir(parents=True, exist_ok=True)
    text = f"import sys\n\nsys.path.insert(1, {str(work)!r})\ndel sys\n"
    (startup / "00-files-that-were-sent.py").write_text(text, encoding="utf-8")


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    """Until it listens. Raises NotListeningError."""
    deadline = time.monotonic() + LISTEN_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise NotListeningError(f"Jupyter ended with {process.returncode}")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(_POLL_SECONDS)
    raise NotListeningError(f"Jupyter did not listen within {LISTEN_SECONDS:.0f} s")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _private(path: Path) -> Any:
    """A new file that this user alone reads, from the first byte on."""
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def main() -> None:
    """Do as the arguments say."""
    root, place, length = Path(sys.argv[1]), sys.argv[2], int(sys.argv[4])
    token = sys.stdin.buffer.read(length).decode()
    try:
        print(json.dumps(start(root, root / place, token)))
    except (NotListeningError, OSError) as error:
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
