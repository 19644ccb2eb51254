"""Serving: commands of both servers, what is served under which name, objects of a cluster; a real server is in e2e."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import rankzero.api.results
from rankzero.api.planning import serving_objects
from rankzero.api.serving import plan_serving, prepare
from rankzero.errors import ConfigError, ServiceError, StopNow, UsageError
from rankzero.launch.labels import RUN
from rankzero.launch.render.content import to_yaml
from rankzero.launch.serving import Answer, Server, choose_engine, require_free, serving, smoke, wait_until_ready
from rankzero.spec.cluster_load import profiles
from rankzero.stop_signals import signals_to, stop_signals
from tests.support import vllm_stand_in
from tests.support.adapters import tiny_adapter
from tests.support.manifests import CORE_VERSIONS, check_core
from tests.support.ports import free_port

GOLDEN = Path(__file__).parents[2] / "golden" / "serve"
PROFILES = [name for name in profiles() if name not in ("docker", "slurm")]


def objects(directory: Path, profile: str, **changes: Any) -> list[dict[str, Any]]:
    (directory / "data").mkdir(exist_ok=True)
    (directory / "data/train.jsonl").write_text('{"prompt": "2+2", "completion": "4"}\n')
    spec = {"name": "alpaca-qwen3-8b", "model": {"name": "Qwen/Qwen3-8B"}, "lora": {}}
    (directory / "run.yaml").write_text(yaml.safe_dump({**spec, "data": {"train": "data/train.jsonl"}}))
    asked: dict[str, Any] = {"name": "assistant", "image": None, "engine": "auto", "port": 8000, "gpus": 1, "more": ()}
    return serving_objects(str(directory / "run.yaml"), profile, **{**asked, **changes})


def test_whether_a_temperature_has_an_effect(tmp_path: Path) -> None:
    """To `transformers serve` only where the model's own settings say that tokens are drawn."""
    for settings, draws in (None, False), ({"do_sample": False}, False), ({"do_sample": True}, True):
        if settings is not None:
            (tmp_path / "generation_config.json").write_text(json.dumps(settings))
        assert Server("transformers", tmp_path, "m").draws is draws
        assert Server("vllm", tmp_path, "m").draws


@pytest.mark.parametrize("profile", PROFILES)
def test_the_objects_are_the_golden_ones_and_valid(profile: str, tmp_path: Path) -> None:
    made = objects(tmp_path, profile)
    text, golden = to_yaml(made), GOLDEN / f"{profile}.yaml"
    if os.environ.get("RANKZERO_UPDATE_GOLDEN") == "1":
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8"), "make golden rewrites it"
    for manifest in made:
        for version in CORE_VERSIONS:
            check_core(manifest, version)


URL = {"url": "s3://bucket/place"}


@pytest.mark.parametrize(("volume", "own"), [("outputs", URL), ("models", URL), ("models", {})])
def test_what_no_other_pod_can_read_is_not_served(volume: str, own: dict[str, str], tmp_path: Path) -> None:
    storage = {name: {"mount": f"/{name}", "claim": name} for name in ("outputs", "models")}
    for name, there in (("whole", storage), ("empty", {**storage, volume: {"mount": f"/{volume}", **own}})):
        place = {"image": "i", "kind": "job", "storage": there}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(place))
    spec = {"name": "r", "model": {"name": "/models/base"}, "data": {"train": "/models/rows.jsonl"}, "lora": {}}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(spec))
    assert serving_objects(str(tmp_path / "run.yaml"), str(tmp_path / "whole.yaml"))
    with pytest.raises(ConfigError, match=f"nothing at /{volume}: the volume there is each pod's own") as caught:
        serving_objects(str(tmp_path / "run.yaml"), str(tmp_path / "empty.yaml"))
    [problem] = caught.value.problems
    assert "rankzero pull" in problem.hint and "claim" in problem.hint


@pytest.mark.parametrize(
    "trained",
    [{"model": {"name": "/models/base"}}, {"model": {"name": "o/m", "tokenizer_dir": "/models/t"}, "lora": {}}],
)
def test_what_the_result_has_itself_may_lie_on_a_volume_of_each_pods_own(
    trained: dict[str, Any], tmp_path: Path
) -> None:
    storage = {"outputs": {"mount": "/outputs", "claim": "o"}, "models": {"mount": "/models", **URL}}
    (tmp_path / "place.yaml").write_text(yaml.safe_dump({"image": "i", "kind": "job", "storage": storage}))
    spec = {"name": "r", "data": {"train": "/models/rows.jsonl"}, **trained}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(spec))
    assert serving_objects(str(tmp_path / "run.yaml"), str(tmp_path / "place.yaml"))


def test_a_base_that_is_shipped_with_the_run_is_not_there_for_its_server(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base/config.json").write_text("{}")
    storage = {"outputs": {"mount": "/outputs", "claim": "o"}}
    (tmp_path / "place.yaml").write_text(yaml.safe_dump({"image": "i", "kind": "job", "storage": storage}))
    spec = {"name": "r", "model": {"name": "./base"}, "data": {"train": "/outputs/rows.jsonl"}, "lora": {}}
    for adapters in (True, False):
        (tmp_path / "run.yaml").write_text(yaml.safe_dump(spec if adapters else {**spec, "lora": None}))
        if not adapters:
            assert serving_objects(str(tmp_path / "run.yaml"), str(tmp_path / "place.yaml"))
            continue
        with pytest.raises(ConfigError, match="model: the base travels with the run"):
            serving_objects(str(tmp_path / "run.yaml"), str(tmp_path / "place.yaml"))


def test_a_directory_that_the_pods_choose_is_not_served(tmp_path: Path) -> None:
    objects(tmp_path, "rook-ceph-1x2")
    with (tmp_path / "run.yaml").open("a", encoding="utf-8") as spec:
        spec.write("resume: new\n")
    with pytest.raises(ConfigError, match="the run may be in a directory beside") as caught:
        serving_objects(str(tmp_path / "run.yaml"), "rook-ceph-1x2")
    [problem] = caught.value.problems
    assert problem.where == "resume" and "rankzero status alpaca-qwen3-8b" in problem.hint


def test_no_golden_file_is_left_over() -> None:
    assert {path.stem for path in GOLDEN.glob("*.yaml")} == set(PROFILES)


def test_clients_find_and_ask_for_the_same_whichever_run_is_served(tmp_path: Path) -> None:
    *_, service, deployment = objects(tmp_path, "rook-ceph-1x2", more=["--max-model-len", "4096"])
    pod = deployment["spec"]["template"]
    [container] = pod["spec"]["containers"]
    command = container["command"]
    assert command[command.index("--name") + 1] == "assistant" and command[-3:] == ["--", "--max-model-len", "4096"]
    assert service["metadata"]["name"] == deployment["metadata"]["name"] == "serve-assistant"
    selector = service["spec"]["selector"]
    assert selector == deployment["spec"]["selector"]["matchLabels"]
    assert selector.items() <= pod["metadata"]["labels"].items() and "alpaca" not in json.dumps(selector)
    assert all(RUN not in one["metadata"]["labels"] for one in (pod, service, deployment)), (
        "nothing of the run's: looking at it, or deleting it, leaves the server alone"
    )
    directory = command[command.index("serve") + 1]
    outputs = next(mount for mount in container["volumeMounts"] if directory.startswith(mount["mountPath"] + "/"))
    assert outputs["readOnly"]
    assert container["startupProbe"]["exec"]["command"][-1] == command[command.index("--ready-file") + 1]
    port = service["spec"]["ports"][0]["targetPort"]
    assert container["readinessProbe"]["httpGet"] == {"path": "/health", "port": port}
    assert "RANKZERO_TOKEN" not in json.dumps(container["env"])


def test_what_the_pod_would_refuse_is_refused_before_it_is_written(tmp_path: Path, installed: None) -> None:
    with pytest.raises(UsageError) as there:
        objects(tmp_path, "rook-ceph-1x2", name="my/model x", engine="nonsense")
    with pytest.raises(UsageError) as here:
        plan_serving(str(tmp_path), name="my/model x", engine="nonsense")
    assert there.value.problems == here.value.problems
    assert [problem.where for problem in here.value.problems] == ["--name", "--engine"]


def test_no_secret_is_written_into_a_deployment(tmp_path: Path) -> None:
    patch = "pod_patch: {containers: [{name: node, env: [{name: VLLM_API_KEY, value: canary}]}]}"
    place = "image: i\nstorage: {outputs: {mount: /outputs, claim: runs}}\n"
    (tmp_path / "c.yaml").write_text(f"{place}{patch}\n")
    with pytest.raises(ConfigError, match="holds a secret"):
        objects(tmp_path, str(tmp_path / "c.yaml"))


def test_gpus_and_image(tmp_path: Path) -> None:
    deployment = objects(tmp_path, "infiniband-2x8", engine="vllm", gpus=4, image="own/image:1")[-1]
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "4"
    assert "rdma" not in json.dumps(container["resources"])
    assert container["image"] == "own/image:1" and container["command"][-2:] == ["--tensor-parallel-size", "4"]
    assert "scheme" not in container["livenessProbe"]["httpGet"]
    more = ["--ssl-certfile", "/keys/tls.crt", "--ssl-keyfile=/keys/tls.key"]
    deployment = objects(tmp_path, "infiniband-2x8", engine="vllm", more=more)[-1]
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    assert (
        container["livenessProbe"]["httpGet"]["scheme"] == container["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"
    )
    with pytest.raises(UsageError, match="several GPUs are for vLLM"):
        objects(tmp_path, "infiniband-2x8", gpus=4)


def test_what_no_cluster_serves(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="this is no Kubernetes"):
        objects(tmp_path, "docker")
    asked: dict[str, Any] = {"name": None, "image": None, "engine": "auto", "port": 8000, "gpus": 1, "more": ()}
    with pytest.raises(UsageError, match="run.yaml"):
        serving_objects("runs/x", "docker", **asked)


def test_the_commands_of_both_servers(tmp_path: Path) -> None:
    kwargs = {"enable_thinking": False}
    one = Server("vllm", tmp_path / "assistant", "assistant", template_kwargs=kwargs, more=["--max-model-len", "99"])
    assert one.as_typed() == (
        f"vllm serve {tmp_path}/assistant --served-model-name assistant --host 127.0.0.1 --port 8000 "
        "--default-chat-template-kwargs '{\"enable_thinking\": false}' --max-model-len 99"
    )
    other = replace(one, engine="transformers", more=(), host="0.0.0.0", port=81)
    assert other.as_typed() == (
        f"cd {tmp_path} && transformers serve assistant --host 0.0.0.0 --port 81 "
        "--chat-template-kwargs '{\"enable_thinking\": false}'"
    )
    assert other.url == "http://127.0.0.1:81"


def test_which_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    for name in ("fastapi", "uvicorn", "openai"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=r"rankzero\[train,serve\]"):
        choose_engine("auto")
    with pytest.raises(ConfigError, match="no program `vllm`"):
        choose_engine("vllm")
    with pytest.raises(UsageError, match="tgi"):
        choose_engine("tgi")


def test_vllm_in_an_environment_of_its_own_is_found(stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM and rankzero want different versions of transformers: where it is installed it is never the same
    environment, and its program is what is there of it."""
    monkeypatch.setattr(sys, "executable", "/elsewhere/python")
    assert choose_engine("auto") == choose_engine("vllm") == "vllm"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "gpu-1"])
def test_a_key_that_nobody_would_ask_for_is_told(
    host: str, tiny: Path, own_cache: Path, installed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    with pytest.raises(ConfigError, match="asks for no key") as refused:
        plan_serving(str(tiny), host=host)
    assert KEY not in str(refused.value)
    for open_to_none in ("127.0.0.1", "::1", "localhost"):
        plan_serving(str(tiny), host=open_to_none)
    monkeypatch.delenv("VLLM_API_KEY")
    plan_serving(str(tiny), host=host)


def test_a_pod_of_a_secret_key_is_one_that_asks_for_it(tmp_path: Path) -> None:
    storage = {"outputs": {"mount": "/outputs", "claim": "o"}}
    place = {"image": "i", "kind": "job", "storage": storage, "secrets": {"VLLM_API_KEY": {"name": "k", "key": "k"}}}
    (tmp_path / "place.yaml").write_text(yaml.safe_dump(place))
    objects(tmp_path, str(tmp_path / "place.yaml"), engine="vllm")
    with pytest.raises(ConfigError, match="asks for no key"):
        objects(tmp_path, str(tmp_path / "place.yaml"), engine="transformers")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankzero.launch.serving.choose_engine", lambda _engine: "transformers")


def test_a_state_of_a_model_has_a_place_of_its_own(tiny: Path, own_cache: Path, installed: None) -> None:
    first = plan_serving(str(tiny), name="mine")
    assert first.server.model.name == "mine" and first.server.model.is_relative_to(own_cache) and first.adapter is None
    (tiny / "note.txt").write_text("trained on")
    try:
        assert plan_serving(str(tiny), name="mine").server.model != first.server.model
    finally:
        (tiny / "note.txt").unlink()
    with pytest.raises(UsageError, match="cannot be a model's name"):
        plan_serving(str(tiny), name="a/b@c")
    with pytest.raises(ConfigError, match="no such model on this machine"):
        plan_serving("some/model")
    with pytest.raises(ConfigError, match="there is no model here: config.json is missing"):
        plan_serving(str(own_cache.parent))  # else a server would begin, and fail as one that may be tried again


def test_what_an_adapter_is_merged_by_has_a_place_of_its_own(
    tiny: Path, tmp_path: Path, own_cache: Path, installed: None
) -> None:
    """The same adapter on the same base is another model where that is packed, or its texts are told otherwise."""
    run, template = tmp_path / "run", tmp_path / "chat.jinja"
    tiny_adapter(tiny, run / "checkpoints/step-1/model")
    (run / "environment.json").write_text("{}")
    template.write_text("{{ messages }}")
    data = {"train": "rows.jsonl"}

    def place(**spec: Any) -> Path:
        value = {"name": "run", "model": {"name": str(tiny)}, "data": data, "lora": {}, **spec}
        (run / "run.yaml").write_text(yaml.safe_dump(value))
        return plan_serving(str(run / "checkpoints/step-1/model"), name="mine").server.model

    first = place()
    packed = place(model={"name": str(tiny), "quantization": "nf4"})
    told = place(data={**data, "chat_template": str(template)})
    template.write_text("{{ messages }}!")
    others = [
        packed,
        told,
        place(data={**data, "chat_template": str(template)}),
        place(data={**data, "image_max_tokens": 9}),
    ]
    assert place() == first and len({first, *others}) == 5


def test_two_servers_of_one_model_prepare_it_at_a_time(
    tiny: Path, tmp_path: Path, own_cache: Path, installed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is done first has put it there, and the other one takes it."""
    planned = plan_serving(str(tiny_adapter(tiny, tmp_path / "adapter")))
    merge = rankzero.api.results.merge

    def overtaken(*arguments: Any, **named: Any) -> Any:
        merge(*arguments, **named)
        return merge(*arguments, **named)

    monkeypatch.setattr(rankzero.api.results, "merge", overtaken)
    prepare(planned)
    assert planned.is_prepared
    shutil.rmtree(planned.server.model)
    monkeypatch.setattr(rankzero.api.results, "merge", lambda *_, **__: merge("nowhere", tmp_path / "out"))
    with pytest.raises(ConfigError):
        prepare(planned)


def test_a_taken_port_is_told_before_anything_is_made() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(ServiceError, match="cannot listen"):
            require_free("127.0.0.1", other.getsockname()[1])


def test_a_server_that_ends_at_once_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "transformers").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "transformers").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    server = Server("transformers", tmp_path / "m", "m", port=free_port())
    with serving(server) as process, pytest.raises(ServiceError, match="ended with 3"):
        wait_until_ready(server, process, 60)


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a program that stands in for vLLM, and that is found as if this environment had it. In it is a
    model, `m`."""
    for name, value in vllm_stand_in.installed(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    (tmp_path / "m").mkdir()
    (tmp_path / "m/chat_template.jinja").write_text("{{ messages }}")
    return tmp_path


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("::", "http://[::1]"),
        ("0:0::0", "http://[::1]"),
        ("::1", "http://[::1]"),
        ("0.0.0.0", "http://127.0.0.1"),
        ("127.0.0.1", "http://127.0.0.1"),
        ("localhost", "http://localhost"),
    ],
)
def test_it_is_asked_where_it_listens(host: str, url: str, stand_in: Path) -> None:
    server = Server("vllm", stand_in / "m", "m", host=host, port=free_port())
    assert server.url == f"{url}:{server.port}"
    if ":" in host and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    with serving(server) as process:
        wait_until_ready(server, process, 60)
        assert smoke(server).text == "it says"


KEY = "sk-of-a-colleague"


@pytest.mark.parametrize(
    ("more", "variable"),
    [
        (["--api-key", KEY], ""),
        ([f"--api-key={KEY}"], ""),
        (["--api_key", KEY, "older-key", "--max-model-len", "99"], ""),
        (["--api-key", "another", "--api-key", KEY], ""),
        (["--max-model-len", "99", "--api-key", KEY], "of-the-environment"),
        ([], KEY),
        (["--api-key", "", KEY], ""),
    ],
)
def test_a_server_that_asks_for_a_key_gets_it(
    more: list[str], variable: str, stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", variable)
    server = Server("vllm", stand_in / "m", "m", port=free_port(), more=more)
    with serving(server) as process:
        wait_until_ready(server, process, 60)
        smoke(server)
    [asked] = vllm_stand_in.asked(stand_in)
    assert asked["authorization"] == f"Bearer {KEY}"
    assert KEY not in server.as_typed() and "older-key" not in server.as_typed(), server.as_typed()
    assert "--max-model-len 99" in server.as_typed() or "--max-model-len" not in more


def test_none_is_sent_to_who_asks_for_none(stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    server = Server("vllm", stand_in / "m", "m", port=free_port())
    with serving(server) as process:
        wait_until_ready(server, process, 60)
        smoke(server)
    assert [one["authorization"] for one in vllm_stand_in.asked(stand_in)] == [None]
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    assert replace(server, engine="transformers").api_key is None, "it is no key of that one's"


def test_a_server_with_a_certificate_is_asked_by_https(stand_in: Path) -> None:
    more = vllm_stand_in.certified(stand_in)
    server = Server("vllm", stand_in / "m", "m", port=free_port(), more=more)
    assert server.url.startswith("https://")
    with serving(server) as process:
        wait_until_ready(server, process, 60)
        assert smoke(server).text == "it says"
    assert replace(server, engine="transformers").url.startswith("http://"), "it has no such flags"


def test_a_model_without_a_chat_template_is_given_a_prompt(stand_in: Path) -> None:
    server = Server("vllm", stand_in / "m", "m", port=free_port())
    with serving(server) as process:
        wait_until_ready(server, process, 60)
        assert smoke(server) == Answer("/v1/chat/completions", "it says")
        (stand_in / "m/chat_template.jinja").unlink()
        assert smoke(server) == Answer("/v1/completions", "Say hello. it says")
    *_, asked = vllm_stand_in.asked(stand_in)
    assert asked["body"] == {"model": "m", "prompt": "Say hello.", "max_tokens": 16, "temperature": 0.0}


TEMPLATE = "{{ messages }}"


@pytest.mark.parametrize(
    ("file", "said", "chats"),
    [
        ("tokenizer_config.json", {"chat_template": TEMPLATE}, True),
        ("tokenizer_config.json", {"chat_template": [{"name": "default", "template": TEMPLATE}]}, True),
        ("tokenizer_config.json", {"chat_template": [{"name": "tool_use", "template": TEMPLATE}]}, False),
        ("tokenizer_config.json", {"chat_template": None}, False),
        ("tokenizer_config.json", {}, False),
        ("tokenizer_config.json", [], False),
        ("processor_config.json", {"chat_template": TEMPLATE}, True),
        ("chat_template.json", {"chat_template": TEMPLATE}, True),
        ("chat_template.json", {"chat_template": {"default": TEMPLATE}}, True),
    ],
)
def test_where_a_chat_template_may_be(file: str, said: object, chats: bool, tmp_path: Path) -> None:
    (tmp_path / file).write_text(json.dumps(said))
    assert Server("vllm", tmp_path, "m").chats is chats
    for more in (["--chat-template", "here.jinja"], ["--chat_template=here.jinja"]):
        assert Server("vllm", tmp_path, "m", more=more).chats


def test_a_key_that_is_not_the_servers_is_told_without_it(stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "its own")
    server = Server("vllm", stand_in / "m", "m", port=free_port())
    with serving(server) as process:
        wait_until_ready(server, process, 60)
        for wrong in (KEY, f"{KEY}\n"):
            monkeypatch.setenv("VLLM_API_KEY", wrong)
            with pytest.raises(ServiceError) as told:
                smoke(server)
            assert KEY not in str(told.value), told.value
            assert (told.value.problems[0].hint.startswith("VLLM_API_KEY, or --api-key")) is (wrong == KEY)


@pytest.mark.parametrize(
    ("more", "flag", "variable"),
    [
        (["--api-key", KEY], "--api-key", "VLLM_API_KEY"),
        ([f"--api_key={KEY}", "--max-model-len", "99"], "--api-key", "VLLM_API_KEY"),
        (["--hf-token", "hf_" + "a" * 20], "--hf-token", "HF_TOKEN"),
        (["--otlp-traces-endpoint", "http://me:word@there"], "--otlp-traces-endpoint", "NAME"),
    ],
)
def test_a_secret_is_not_written_into_the_objects_of_a_cluster(
    more: list[str], flag: str, variable: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as told:
        objects(tmp_path, "rook-ceph-1x2", more=more)
    [problem] = told.value.problems
    assert problem.where == flag and f"secrets: {{{variable}: {{name: " in problem.hint
    assert not any(one in str(told.value) for one in more if not one.startswith("--"))


def test_what_looks_like_the_flag_of_a_secret_and_is_none_is_left_alone(tmp_path: Path) -> None:
    more = ["--hf-token", "--long-prefill-token-threshold", "512", "--return-tokens-as-token-ids"]
    assert objects(tmp_path, "rook-ceph-1x2", more=more)
    assert Server("vllm", tmp_path / "m", "m", more=more).as_typed().endswith(" ".join(more))


def stop(_number: int) -> None:
    raise StopNow


def test_a_stop_while_the_server_is_being_started_leaves_none_behind(
    stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    def start(*given: Any, **more: Any) -> subprocess.Popen[bytes]:
        started.append(real(*given, **more))
        signal.raise_signal(signal.SIGTERM)
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", start)
    server = Server("vllm", stand_in / "m", "m", port=free_port())
    with pytest.raises(StopNow), signals_to(stop, stop_signals()), serving(server):
        pytest.fail("it was told to stop")
    [process] = started
    assert process.returncode is not None


@pytest.mark.usefixtures("hung_up_on")
def test_who_is_told_to_stop_again_waits_no_longer(stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankzero.launch.serving.END_SECONDS", threading.TIMEOUT_MAX)
    (stand_in / vllm_stand_in.STUBBORN).touch()
    server = Server("vllm", stand_in / "m", "m", port=free_port())

    def again() -> None:
        vllm_stand_in.wait_for(stand_in / vllm_stand_in.HEARD)
        os.kill(os.getpid(), signal.SIGHUP)

    with signals_to(stop, stop_signals()):
        with serving(server) as process:
            wait_until_ready(server, process, 60)
            threading.Thread(target=again).start()
        assert process.returncode == -signal.SIGKILL
    for pid in vllm_stand_in.pids(stand_in):
        vllm_stand_in.wait_until_gone(pid)
