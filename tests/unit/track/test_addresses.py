"""What of a tracker's address is shown and kept: where it is, never who asks there and by what."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from rankzero.errors import ConfigError, ServiceError
from rankzero.run_dir.paths import RunDir
from rankzero.spec.run_spec import RunSpec
from rankzero.track import langfuse, mlflow, trackio
from rankzero.track.send import Delivery
from rankzero.track.server import place_of, without_login
from rankzero.track.spool import Sent

SPEC = RunSpec.model_validate({"name": "r", "model": {"name": "m"}, "data": {"train": "t.jsonl"}})
LOGINS = ("token-canary", "token-canary:", "me:canary", "me:qzx/canary", "me:qzx@canary", "me:qzx?c#canary")
VARIABLES = {
    langfuse: {"LANGFUSE_PUBLIC_KEY": "pk-lf-1", "LANGFUSE_SECRET_KEY": "sk-lf-1", "LANGFUSE_HOST": ""},
    trackio: {"TRACKIO_WRITE_TOKEN": "write", "TRACKIO_SERVER_URL": ""},
}


@pytest.mark.parametrize("login", LOGINS)
def test_an_address_has_no_login(login: str) -> None:
    text = f"API request to https://{login}@host:5000/api/2.0 failed, as 'postgresql://{login}@host/runs' did"
    assert without_login(text) == "API request to https://host:5000/api/2.0 failed, as 'postgresql://host/runs' did"


@pytest.mark.parametrize(
    "text",
    ["http://host:5000/#/experiments/1", "sqlite:////data/a@b/runs.db", "file:///data/a@b", "mail a@b, http://c"],
)
def test_what_is_no_login_stays(text: str) -> None:
    assert without_login(text) == text


@pytest.mark.parametrize("module", VARIABLES)
@pytest.mark.parametrize("login", LOGINS)
def test_neither_a_note_nor_an_error_has_it(
    login: str, module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = RunDir(tmp_path / "r")
    run_dir.root.mkdir()
    run_dir.metrics.write_text('{"step": 1, "time": 1.0, "loss": 1.0}\n')
    for name, value in VARIABLES[module].items():
        monkeypatch.setenv(name, value or f"http://{login}@127.0.0.1:9")
    one = Delivery("one", module.connect, run_dir, SPEC)
    with pytest.raises((ServiceError, ConfigError)):
        one.round()
    note = run_dir.tracking / "one.json"
    assert not [part for part in ("qzx", "canary") if part in f"{Sent.read(note).link} {one.sent.error}"]
    assert "canary" not in note.read_text()


@pytest.mark.parametrize(("variable", "module"), [("LANGFUSE_HOST", langfuse), ("MLFLOW_TRACKING_URI", mlflow)])
@pytest.mark.parametrize(
    ("url", "is_one"),
    [
        ("http://me:qzx/canary@host:5000", False),
        ("https://me:qzx?canary@host", False),
        ("http://me:qzx%2Fcanary@host:5000", True),
        ("http://host:5000/of/me@home", True),
        ("http://host/of/me@home", True),
        ("http://[::1]:5000/me@home", True),
        ("sqlite:////data/a:b@c/runs.db", True),
    ],
)
def test_an_address_that_no_client_reads_is_said_to_be_none(
    url: str, is_one: bool, variable: str, module: ModuleType
) -> None:
    """Before the run, and without the pieces that a client's error would have."""
    found = [problem for problem in module.unset({variable: url}) if "no address" in problem.what]
    assert bool(found) is not is_one and "qzx" not in "".join(map(str, found))


@pytest.mark.parametrize("login", LOGINS)
def test_another_login_is_at_the_same_place(login: str) -> None:
    for scheme in ("http", "mysql+pymysql"):
        assert place_of("p", f"{scheme}://{login}@host/a") == place_of("p", f"{scheme}://host/a")
