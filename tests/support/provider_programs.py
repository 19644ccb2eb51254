"""Stand-ins for `nebius`, `helm`, `kubectl` and `kind`: they keep what was made in a JSON file, and fail where told.

A file of its own on PATH, as the real ones are, or within the test. Imports the standard library alone, to start fast.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

PROJECT = "project-1"
VARIABLE = "STAND_IN_STATE"
OUTAGE = (1, "", "Error: rpc error: code = Unavailable desc = try again, token {token}")
CHANGING = ("create", "delete", "get-credentials", "pull", "upgrade", "uninstall", "export")
KINDS = {"cluster": "mk8s", "node-group": "mk8s", "service-account": "iam", "filesystem": "compute"}

State = dict[str, Any]
Answer = tuple[int, str, str]


def fresh(**changes: Any) -> State:
    """`fail_at`: which call fails, counted from 1; `after`: once it has done what it was to do. `slow`: how often
    things are found unready. `cut`: the status in which the next release is left. `refuse`: words of a call that is
    refused, each time, as in `said`. `stop`: words after which this process is stopped. `servers`: what contexts lead
    to. `overwrites`: a context of that name is no hindrance. `untold`: clusters do not say where they are."""
    calls: State = {"calls": [], "fail_at": 0, "after": False, "slow": 0, "refuse": [], "stop": []}
    contexts: State = {"contexts": [], "servers": {}, "overwrites": False, "untold": False}
    things: State = {"things": {}, "elsewhere": {}, "cut": "", "project": PROJECT, "label": "nebius.com/node-group-id"}
    return {**calls, **contexts, **things, **changes}


def called(state: State, words: Sequence[str], stdin: str = "", env: Mapping[str, str] | None = None) -> Answer:
    """One call of one program."""
    state["calls"].append([*words, *([stdin] if stdin else [])])
    token = (env or {}).get("NEBIUS_IAM_TOKEN", "")
    failed = (OUTAGE[0], OUTAGE[1], OUTAGE[2].format(token=token))
    fails = len(state["calls"]) == state["fail_at"]
    if state["refuse"] and set(state["refuse"]) <= set(words):
        fails, failed = True, (1, "", state["said"])
    if fails and not state["after"]:
        return failed
    options, rest = parsed(words[1:])
    answer = PROGRAMS[words[0]](state, options, rest)
    return failed if fails else answer


def parsed(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Options, and the rest; what follows `--` is one of the options."""
    options: dict[str, str] = {}
    rest: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        if word == "--":
            options["--"] = left.pop(0)
        elif word.startswith("--"):
            name, equals, value = word.partition("=")
            flag = name in ("--external", "--internal", "--install") or (not left or left[0].startswith("--"))
            options[name] = value if equals else "" if flag else left.pop(0)
        else:
            rest.append(word)
    return options, rest


def nebius(state: State, options: dict[str, str], rest: list[str]) -> Answer:
    if rest == ["config", "get", "parent-id"]:
        return 0, f"{state['project']}\n", ""
    service, kind, verb = rest
    if (kind, verb) == ("subnet", "list"):
        return 0, json.dumps({"items": [{"metadata": {"id": "subnet-1"}}]}), ""
    assert KINDS[kind] == service, rest
    there = state["things"] if state["project"] == PROJECT else state["elsewhere"]
    things = there.setdefault(kind, {})
    if verb == "get-credentials":
        assert any(one["id"] == options["--id"] for one in things.values()), "there is no such cluster"
        if "nebius-mk8s" in state["contexts"] and not state["overwrites"]:
            return 1, "", "context nebius-mk8s already exists in the kubeconfig"
        state["contexts"] = [*(one for one in state["contexts"] if one != "nebius-mk8s"), "nebius-mk8s"]
        state["servers"]["nebius-mk8s"] = endpoint(options["--id"], "pu" if "--external" in options else "pr")
        return 0, "", ""
    if verb == "delete":
        return deleted(there, kind, options["--id"])
    name = options["--name"]
    if verb == "create":
        if name in things:
            return 1, "", f"rpc error: code = AlreadyExists desc = {name} is there"
        things[name] = {"id": f"{kind}-{name}", "options": options, "looks": state["slow"]}
        return 0, json.dumps({"metadata": {"id": things[name]["id"]}}), ""
    if name not in things:
        return 1, "", f"Error: rpc error: code = NotFound desc = {kind} {name} not found"
    thing = things[name]
    thing["looks"] -= 1
    status: dict[str, Any] = {"state": thing.get("state") or ("PROVISIONING" if thing["looks"] >= 0 else "RUNNING")}
    thing["looks"] = max(0, thing["looks"])
    count = thing.get("options", {}).get("--fixed-node-count")
    spec = {"fixed_node_count": count} if count else {}  # a number as text, as protobuf's JSON has it
    if "options" in thing:
        spec |= SPECS[kind](thing["options"])
    if kind == "cluster" and not state["untold"]:
        asked = thing.get("options", {}).get("--control-plane-endpoints-public-endpoint", "true")
        told = {"private_endpoint": endpoint(thing["id"], "pr")}
        if asked == "true" and status["state"] == "RUNNING":
            told["public_endpoint"] = endpoint(thing["id"], "pu")
        status["control_plane"] = {"endpoints": told}
    return 0, json.dumps({"metadata": {"id": thing["id"], "name": name}, "spec": spec, "status": status}), ""


def endpoint(cluster: str, whose: str) -> str:
    return f"https://{whose}.{cluster}.example.com:443"


def of_cluster(options: Mapping[str, str]) -> dict[str, Any]:
    told = {"version": options.get("--control-plane-version"), "subnet_id": options["--control-plane-subnet-id"]}
    return {"control_plane": told}


def of_group(options: Mapping[str, str]) -> dict[str, Any]:
    told = json.loads(options.get("--", "{}")).get("spec", {}).get("template", {})
    resources = {name: options[f"--template-resources-{name}"] for name in ("platform", "preset")}
    size, kind = options["--template-boot-disk-size-gibibytes"], options["--template-boot-disk-type"]
    template = {
        "resources": resources,
        "filesystems": told.get("filesystems", []),
        "boot_disk": {"size_bytes": str(int(size) * 2**30), "type": kind.upper()},
        "service_account_id": options.get("--template-service-account-id", ""),
    }
    if drivers := options.get("--template-gpu-settings-drivers-preset"):
        template["gpu_settings"] = {"drivers_preset": drivers}
    return {"template": template}


def of_filesystem(options: Mapping[str, str]) -> dict[str, Any]:
    block = options["--block-size-bytes"]
    return {"size_gibibytes": options["--size-gibibytes"], "type": options["--type"].upper(), "block_size_bytes": block}


SPECS: dict[str, Callable[[Mapping[str, str]], dict[str, Any]]] = {
    "cluster": of_cluster,
    "node-group": of_group,
    "filesystem": of_filesystem,
    "service-account": lambda _options: {},
}
"""What things are, as the service tells it, by what they were asked for with."""


def deleted(there: dict[str, dict[str, Any]], kind: str, id: str) -> Answer:
    things = there[kind]
    name = next((name for name, one in things.items() if one["id"] == id), None)
    if name is None:
        return 1, "", "rpc error: code = NotFound desc = resource not found"
    if kind == "cluster" and there.get("node-group"):
        return 1, "", "rpc error: code = FailedPrecondition desc = the cluster has node groups"
    if kind == "cluster":
        there.pop("release", None)
    if kind == "filesystem" and there.get("node-group"):
        return 1, "", "rpc error: code = FailedPrecondition desc = the file system is attached"
    del things[name]
    return 0, "{}", ""


def helm(state: State, options: dict[str, str], rest: list[str]) -> Answer:
    things = state["things"].setdefault("release", {})
    if rest[0] == "pull":
        file = Path(options["--destination"], f"{rest[1].rpartition('/')[2]}-{options['--version']}.tgz")
        state["things"].setdefault("file", {})[str(file)] = {}
        return 0, "Pulled: …", ""
    name = rest[1]
    there = things.get(name, {"status": ""})
    if rest[0] == "history":
        return (0, json.dumps([there]), "") if name in things else (1, "", "Error: release: not found")
    if rest[0] == "uninstall":
        del things[name]
        return 0, "", ""
    if rest[0] == "rollback":
        there["status"] = "deployed"
        return 0, "", ""
    assert options["--kube-context"] in ("nebius-mk8s",) and str(Path(rest[2])) in state["things"]["file"], rest
    if there["status"].startswith(("pending", "uninstalling")):
        return 1, "", "Error: UPGRADE FAILED: another operation (install/upgrade/rollback) is in progress"
    if there["status"] == "failed" and there["revision"] == 1:
        return 1, "", f'Error: UPGRADE FAILED: "{name}" has no deployed releases'
    chart = Path(rest[2]).name.removesuffix(".tgz")
    cut = state.pop("cut", "")
    things[name] = {"revision": there.get("revision", 0) + 1, "status": cut or "deployed", "chart": chart}
    return (1, "", "Error: context canceled") if cut else (0, "", "")


def kubectl(state: State, options: dict[str, str], rest: list[str]) -> Answer:
    if rest[:2] == ["config", "view"]:
        servers = {name: state["servers"].get(name, "https://elsewhere.example.com") for name in state["contexts"]}
        contexts = [{"name": name, "context": {"cluster": f"of-{name}"}} for name in servers]
        clusters = []
        for name, server in servers.items():
            url, _, called = server.partition(" ")
            clusters.append({"name": f"of-{name}", "cluster": {"server": url, "tls-server-name": called}})
        return 0, json.dumps({"contexts": contexts or None, "clusters": clusters or None}), ""
    if rest[:2] == ["config", "delete-context"]:
        if rest[2] not in state["contexts"]:
            return 1, "", f"error: cannot delete context {rest[2]}, not in the kubeconfig"
        state["contexts"].remove(rest[2])
        return 0, f"deleted context {rest[2]}", ""
    assert rest == ["get", "nodes"] and options["--context"] in state["contexts"]
    nodes = []
    for one in state["things"].get("node-group", {}).values():
        nodes += [node({state["label"]: one["id"]}, one)] * int(one["options"]["--fixed-node-count"])
    for one in state["things"].get("kind", {}).values():
        nodes += [node({"node-role.kubernetes.io/control-plane": ""}, {})]
        nodes += [node({}, one)] * one["stdin"].count("role: worker")
    return 0, json.dumps({"items": nodes}), ""


def node(labels: Mapping[str, str], thing: Mapping[str, Any]) -> dict[str, Any]:
    """One that is ready, unless what it is of says `unready`."""
    conditions = [{"type": "Ready", "status": "False" if thing.get("unready") else "True"}]
    return {"metadata": {"labels": labels}, "status": {"conditions": conditions}}


def kind(state: State, options: dict[str, str], rest: list[str]) -> Answer:
    things = state["things"].setdefault("kind", {})
    name = options.get("--name", "")
    if rest == ["get", "clusters"]:
        return 0, "\n".join(things), "" if things else "No kind clusters found."
    if rest == ["get", "nodes"]:
        workers = things[name]["stdin"].count("role: worker")
        return 0, "\n".join([f"{name}-control-plane", *(f"{name}-worker{n or ''}" for n in range(workers))]), ""
    if rest in (["get", "kubeconfig"], ["export", "kubeconfig"]) and things[name].get("half"):
        return 1, "", 'ERROR: failed to get cluster internal kubeconfig: command "docker exec …" failed'
    if rest[0] == "create":
        if name in things:
            return 1, "", f"ERROR: failed to create cluster: node(s) already exist for {name}"
        things[name] = {"options": options, "stdin": state["calls"][-1][-1], "half": state.pop("cut", "")}
        if things[name]["half"]:
            return -9, "", ""
    elif rest[0] == "delete":
        things.pop(name, None)
        state["contexts"] = [one for one in state["contexts"] if one != f"kind-{name}"]
    elif rest[0] == "export":
        state["contexts"].append(f"kind-{name}")
    return 0, "", ""


PROGRAMS: dict[str, Callable[[State, dict[str, str], list[str]], Answer]] = {
    "nebius": nebius,
    "helm": helm,
    "kubectl": kubectl,
    "kind": kind,
}


def installed(directory: Path, *names: str) -> Path:
    """A directory for PATH that has them."""
    for name in names:
        program(directory, name, Path(__file__).read_text(encoding="utf-8"))
    return directory


def program(directory: Path, name: str, text: str) -> None:
    """One that does what a text in Python says, with the standard library alone."""
    directory.mkdir(exist_ok=True)
    path = directory / name
    path.write_text(f"#!{sys.executable} -SE\n{text}")
    path.chmod(0o755)


def main() -> None:
    """One call, as a process."""
    path = Path(os.environ[VARIABLE])
    state = json.loads(path.read_text()) if path.exists() else fresh()
    code, out, err = called(state, [Path(sys.argv[0]).name, *sys.argv[1:]], sys.stdin.read(), os.environ)
    path.write_text(json.dumps(state))
    sys.stdout.write(out)
    sys.stderr.write(err)
    sys.exit(code)


if __name__ == "__main__":
    main()
