"""`rankzero dev jupyter` over docker: a server in the first container, reached through `docker exec`."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest

from rankzero.launch.node.group import end_group, leads
from tests.support.cli import Cli
from tests.support.jupyter import forwarding, said_by_kernel, stand_in, token_of
from tests.unit.launch.backends.docker.fake_docker import Daemon
from tests.unit.launch.backends.docker.test_docker_dev import cli as cli
from tests.unit.launch.backends.docker.test_docker_dev import project as project


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """Where the server has its own files; whatever runs there is ended."""
    place = tmp_path / "pods" / "rankzero-dev-0" / "jupyter"
    yield place
    end_group(place)


@pytest.fixture
def jupyter(tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{stand_in(tmp_path / 'site')}:{os.environ['PYTHONPATH']}")


def test_it_stays_with_its_token_whatever_dev_run_runs(cli: Cli, jupyter: None, daemon: Daemon, home: Path) -> None:
    cli("dev up")
    with forwarding() as url, httpx2.Client() as client:
        first, again = client.get(url), client.get(url)
        assert first.status_code == again.status_code == 200
        assert httpx2.get(url.replace("token=", "token=x")).status_code == 403
    told, token = first.json(), token_of(url)
    assert urlsplit(url).hostname == "127.0.0.1" and told["path"].startswith("/lab?")
    assert len(token) > 40 and token not in json.dumps([told["argv"], told["env"], daemon.state])
    files = [path for path in home.rglob("*") if path.is_file() and token in path.read_text()]
    assert [(path.name, path.stat().st_mode & 0o777) for path in files] == [("token", 0o600)]
    assert home.stat().st_mode & 0o777 == 0o700
    flags = told["flags"]
    assert (flags["ServerApp.ip"], flags["ServerApp.root_dir"]) == ("127.0.0.1", "/")
    assert flags["ServerApp.preferred_dir"] == str(home.parent / "work")
    assert flags["LabApp.news_url"] == "None", "nothing is asked of anybody"

    assert cli(f"dev run --no-sync -- {sys.executable} -c pass").code == 0
    with forwarding() as other:
        assert token_of(other) == token and httpx2.get(other).json()["pid"] == told["pid"] == leads(home)


def test_one_that_is_gone_is_started_again(cli: Cli, jupyter: None, home: Path) -> None:
    cli("dev up")
    with forwarding() as url:
        pid = httpx2.get(url).json()["pid"]
    os.kill(pid, signal.SIGKILL)
    with forwarding() as other:
        assert httpx2.get(other).json()["pid"] != pid and token_of(other) != token_of(url)


def test_what_keeps_it_from_listening_is_said(
    cli: Cli, project: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = stand_in(tmp_path / "site", "import sys\nsys.exit('Bad config encountered')\n")
    monkeypatch.setenv("PYTHONPATH", f"{site}:{os.environ['PYTHONPATH']}")
    cli("dev up")
    done = cli("dev jupyter")
    assert done.code == 69 and "Jupyter ended with 1; Bad config encountered" in done.err
    assert leads(home) is None and done.out == ""


def test_a_port_that_is_taken_is_said_and_nothing_started(cli: Cli, jupyter: None, home: Path) -> None:
    cli("dev up")
    with forwarding() as url:
        done = cli(f"dev jupyter --port {urlsplit(url).port}")
    assert done.code == 2 and "Address already in use" in done.err and "another --port" in done.err
    with forwarding() as other:
        assert urlsplit(other).port


def test_ctrl_c_as_soon_as_the_url_is_read_is_its_usual_end(
    cli: Cli, jupyter: None, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_said: object) -> None:
        raise KeyboardInterrupt

    cli("dev up")
    monkeypatch.setattr("rankzero.cli.dev._say_where", interrupted)
    assert cli("dev jupyter").code == 0


@pytest.mark.skipif(not find_spec("jupyter_server"), reason="needs jupyter_server: pip install 'rankzero[jupyter]'")
def test_a_kernel_of_a_real_server_sees_the_files_that_were_sent(
    cli: Cli, project: Path, daemon: Daemon, home: Path
) -> None:
    (project / "mine.py").write_text("ANSWER = 42\n", encoding="utf-8")
    (project / "notebooks").mkdir()
    (project / "notebooks/a.ipynb").write_text("{}", encoding="utf-8")
    cli("dev up")
    cli("dev sync")
    with forwarding() as url:
        parts = urlsplit(url)
        assert httpx2.get(f"http://{parts.netloc}/api/contents").status_code == 403
        code = "import mine, os; print(mine.ANSWER, os.getpid())"
        answer, pid = said_by_kernel(url, home.parent / "work" / "notebooks", code).split()
        assert answer == "42" and Path(f"/proc/{pid}").exists()
    token = token_of(url)
    assert token not in (home / "log").read_text() and token not in Path(f"/proc/{leads(home)}/cmdline").read_text()
    end_group(home)
    assert not Path(f"/proc/{pid}").exists(), "kernels end with it"
