"""A `docker` command whose daemon is a JSON file: what the backend asks for is recorded, nothing runs.

Runs as a process of its own, as the real one does, or, for speed, within the test. A test sets how it behaves: how
containers end when they are started (`ends`), what they have said (`says`), which calls are refused (`refuses`).
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

NEVER = "0001-01-01T00:00:00Z"


class Answer(NamedTuple):
    """As the backend's own; this file imports nothing of it, to start fast."""

    code: int
    out: str
    err: str


VARIABLE = "FAKE_DOCKER"
"""Names the file."""
_WITH_VALUE = {
    *("--name", "--network", "--hostname", "--network-alias", "--stop-timeout", "--shm-size", "--user", "--group-add"),
    *("--security-opt", "--cap-drop", "--cap-add", "--memory", "--memory-swap", "--cpus", "--gpus", "--workdir"),
    *("--entrypoint", "--tmpfs", "--mount", "--label", "--env-file", "--env", "--filter", "--format", "--type"),
    *("--since", "--tail"),
}


def refuse(message: str) -> None:
    print(f"Error response from daemon: {message}", file=sys.stderr)
    raise SystemExit(1)


def parse(arguments: list[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Options and the rest. What follows an image is the container's command, whatever it looks like."""
    options: dict[str, list[str]] = {}
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        if word in _WITH_VALUE:
            options.setdefault(word, []).append(next(words))
        elif word.startswith("--"):
            options.setdefault(word, []).append("")
        else:
            rest.append(word)
            if "--name" in options:
                rest += words
    return options, rest


def labels_of(options: dict[str, list[str]]) -> dict[str, str]:
    return dict(label.split("=", 1) for label in options.get("--label", []))


def find(state: dict[str, Any], name: str) -> dict[str, Any]:
    for one in state["containers"].values():
        if name in (one["Id"], one["Name"].lstrip("/")):
            found: dict[str, Any] = one
            return found
    refuse(f"No such container: {name}")
    raise AssertionError


def create(state: dict[str, Any], arguments: list[str]) -> None:
    options, rest = parse(arguments)
    name = options["--name"][0]
    if any(one["Name"] == f"/{name}" for one in state["containers"].values()):
        refuse(f'Conflict. The container name "/{name}" is already in use by container "abc".')
    file = Path(options["--env-file"][0])
    number = state["count"] = state.get("count", 0) + 1
    state["containers"][f"id{number}"] = {
        "Id": f"id{number}",
        "Name": f"/{name}",
        "Image": "sha256:abc",
        "Created": f"2026-01-01T00:00:{number:02}.123456789Z",
        "Config": {"Labels": labels_of(options), "Env": file.read_text(encoding="utf-8").splitlines()},
        "State": {"Status": "created", "Running": False, "ExitCode": 0, "Error": "", "OOMKilled": False}
        | {"StartedAt": NEVER, "FinishedAt": NEVER},
        "NetworkSettings": {"Networks": {}},
        "HostConfig": {"DeviceRequests": devices(options.get("--gpus", []))},
        "fake": {
            "options": options,
            "rest": rest,
            "mode": file.stat().st_mode & 0o777,
            "passed": {key: state["env"][key] for key in options.get("--env", [])},
        },
    }
    print(f"id{number}")


def devices(asked: list[str]) -> list[dict[str, Any]] | None:
    ids = [text.strip('"').removeprefix("device=").split(",") for text in asked]
    return [{"Driver": "", "Count": 0, "DeviceIDs": one, "Capabilities": [["gpu"]]} for one in ids] or None


def start(state: dict[str, Any], names: list[str]) -> None:
    for name in names:
        one = find(state, name)
        ends = state["behaviour"].get("ends", {}).get(name)
        one["State"] |= {"Status": "running", "Running": True, "StartedAt": "2026-01-01T00:01:00.5Z"}
        if ends:
            end(one, *ends.pop(0))


def end(one: dict[str, Any], code: int, message: str = "") -> None:
    one["State"] |= {"Status": "exited", "Running": False, "ExitCode": code, "FinishedAt": "2026-01-01T00:02:00Z"}
    Path(one["Config"]["Labels"]["rankzero.dev/docker-termination"]).write_text(message, encoding="utf-8")


def stop(state: dict[str, Any], names: list[str]) -> None:
    for one in (find(state, name) for name in names):
        if one["State"]["Running"]:
            end(one, 75, '{"rankzero": 1, "outcome": "stopped", "exit_code": 75}')


def remove(state: dict[str, Any], names: list[str]) -> None:
    for one in [find(state, name) for name in names if not name.startswith("--")]:
        if one["State"]["Running"]:
            refuse(f"You cannot remove a running container {one['Id']}")
        del state["containers"][one["Id"]]


def rename(state: dict[str, Any], names: list[str]) -> None:
    find(state, names[0])["Name"] = f"/{names[1]}"


def logs(state: dict[str, Any], arguments: list[str]) -> None:
    options, (name,) = parse(arguments)
    container = find(state, name)["Name"].lstrip("/")
    if why := state["behaviour"].get("unread"):
        refuse(why)
    lines: list[str] = state["behaviour"].get("says", {}).get(container, [])
    tail = int(options["--tail"][0]) if "--tail" in options else None
    sys.stderr.write("".join(f"{line}\n" for line in (lines if tail is None else lines[-tail:])))


def show(state: dict[str, Any], names: list[str]) -> None:
    found = [one for one in state["containers"].values() if {one["Id"], one["Name"].lstrip("/")} & set(names)]
    print(json.dumps([{key: value for key, value in one.items() if key != "fake"} for one in found]))
    known = {name for one in found for name in (one["Id"], one["Name"].lstrip("/"))}
    if missing := [f"No such container: {name}" for name in names if name not in known]:
        refuse("\nError response from daemon: ".join(missing))


def listing(state: dict[str, Any], arguments: list[str]) -> None:
    options, _ = parse(arguments)
    what, _, value = options["--filter"][0].partition("=")
    wanted = value.partition("=")
    for one in state["containers"].values():
        if what == "volume":
            if any(f"source={value}," in mount for mount in one["fake"]["options"].get("--mount", [])):
                print(one["Id"])
            continue
        labels = one["Config"]["Labels"]
        if wanted[0] in labels and wanted[2] in ("", labels[wanted[0]]):
            print(one["Id"])


def kept(kind: str) -> Callable[[dict[str, Any], list[str]], None]:
    """Volumes and networks: things with a name and labels."""

    def call(state: dict[str, Any], arguments: list[str]) -> None:
        things: dict[str, dict[str, str]] = state[kind]
        verb, (options, names) = arguments[0], parse(arguments[1:])
        if verb == "create":
            things[names[0]] = labels_of(options)
        elif verb == "ls":
            key, _, value = options["--filter"][0].removeprefix("label=").partition("=")
            print(
                "\n".join(name for name, labels in things.items() if value in ("", labels.get(key)) and key in labels)
            )
        elif names[0] not in things:
            refuse(f"get {names[0]}: no such volume" if kind == "volumes" else f"network {names[0]} not found")
        elif verb == "inspect":
            print(json.dumps([{"Name": names[0], "Labels": things[names[0]] or None}]))
        elif verb == "rm":
            del things[names[0]]

    return call


def host(state: dict[str, Any], arguments: list[str]) -> None:
    limits = {"MemoryLimit": True, "SwapLimit": True, "CpuCfsQuota": True}
    print(json.dumps({"Name": "box", "NCPU": 4, "MemTotal": 8 * 2**30, **limits}))


def wait(state: dict[str, Any], names: list[str]) -> None:
    print(find(state, names[0])["State"]["ExitCode"])


def image(state: dict[str, Any], arguments: list[str]) -> None:
    if arguments[-1] not in state["images"]:
        refuse(f"No such image: {arguments[-1]}")
    print(json.dumps([{"Id": "sha256:abc"}]))


COMMANDS: dict[str, Callable[[dict[str, Any], list[str]], None]] = {
    **{
        "create": create,
        "start": start,
        "stop": stop,
        "rm": remove,
        "rename": rename,
        "logs": logs,
        "ps": listing,
        "wait": wait,
    },
    **{"info": host, "volume": kept("volumes"), "network": kept("networks"), "image": image},
    "inspect": lambda state, arguments: show(state, parse(arguments)[1]),
    "run": lambda state, arguments: None,
}


WARM_DIR = "/tmp/rankzero-dev"
"""Of a container; here each has a directory beside the state."""


def execute(path: Path, arguments: list[str], env: Mapping[str, str]) -> None:
    """Become the command, in the place of the container's."""
    name, *command = [word for word in arguments if word != "--interactive"]
    with opened(path) as state:
        state["calls"].append(["exec", *arguments])
        if not find(state, name)["State"]["Running"]:
            refuse(f"container {name} is not running")
        says = state["behaviour"].get("nvidia-smi", {}).get(name)
    if command[0] == "nvidia-smi":
        print(says or 'OCI runtime exec failed: exec: "nvidia-smi": executable file not found in $PATH')
        raise SystemExit(127 if says is None else 0)
    words = [word.replace(WARM_DIR, str(path.parent / "pods" / name)) for word in command[1:]]
    os.execve(sys.executable, [sys.executable, *words], dict(env))


@contextlib.contextmanager
def opened(path: Path) -> Iterator[dict[str, Any]]:
    """The daemon's state, for one at a time: logs are read while other commands run."""
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = json.loads(path.read_text(encoding="utf-8"))
        try:
            yield state
        finally:
            path.write_text(json.dumps({**state, "env": {}}), encoding="utf-8")


def run(path: Path, arguments: list[str], env: Mapping[str, str]) -> None:
    with opened(path) as state:
        state["calls"].append(arguments)
        state["env"] = dict(env)
        for words, message in state["behaviour"].get("refuses", {}).items():
            if " ".join(arguments).startswith(words):
                refuse(message)
        COMMANDS[arguments[0]](state, arguments[1:])


class Daemon:
    """The test's side of it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        empty: dict[str, Any] = {"containers": {}, "volumes": {}, "networks": {}, "calls": [], "behaviour": {}}
        path.write_text(json.dumps({**empty, "images": ["rankzero:test"]}), encoding="utf-8")

    def execute(self, arguments: Sequence[str], env: Mapping[str, str]) -> Answer:
        """A call without a process."""
        out, err = io.StringIO(), io.StringIO()
        code = 0
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                run(self._path, list(arguments[1:]), env)
            except SystemExit as left:
                code = int(str(left.code))
        return Answer(code, out.getvalue(), err.getvalue())

    @property
    def state(self) -> dict[str, Any]:
        with opened(self._path) as state:
            return state

    def behave(self, **behaviour: Any) -> None:
        self.change(behaviour=behaviour)

    def change(self, **parts: Any) -> None:
        with opened(self._path) as state:
            state |= parts

    def finish(self, container: str, code: int, message: str = "") -> None:
        """A container ends by itself."""
        with opened(self._path) as state:
            end(find(state, container), code, message)

    def container(self, name: str) -> dict[str, Any]:
        return find(self.state, name)

    def names(self) -> set[str]:
        return {one["Name"].lstrip("/") for one in self.state["containers"].values()}

    def calls(self, verb: str) -> list[list[str]]:
        return [call for call in self.state["calls"] if call[0] == verb]


if __name__ == "__main__":
    if sys.argv[1] == "exec":
        execute(Path(os.environ[VARIABLE]), sys.argv[2:], os.environ)
    run(Path(os.environ[VARIABLE]), sys.argv[1:], os.environ)
