"""The command line as its own process: light, quick, and with the exit codes that a shell sees."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from rankzero.cli.first_line import first_line, leave_out_first_line, say_first_line, say_step
from rankzero.cli.output import print_error
from rankzero.errors import ConfigError
from tests.support.work import calls_of_command

HEAVY = ("torch", "transformers", "datasets", "numpy", "peft", "pyarrow", "rich", "pydantic", "yaml")


AT_ONCE = """import sys, threading
class Timer:
    def __init__(self, _seconds, function, args): self.start = lambda: function(*args)
    def cancel(self): pass
threading.Timer = Timer
"""
"""Code with which timers do not wait."""


def run(*words: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    command, env = [sys.executable, "-m", "rankzero", *words], {**os.environ, **variables}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "latin-1:replace", "utf-8"])
def test_json_is_json_in_every_encoding(encoding: str, tmp_path: Path) -> None:
    """Also of names that the encoding has no letters for."""
    name = "r\U0001f600\u2026\u00e9.jsonl"
    (tmp_path / name).write_text('{"zzz": 1}\n')
    command = [sys.executable, "-m", "rankzero", "data", "check", name, "--json"]
    env = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, timeout=300, check=False)
    stated = json.loads(done.stdout.decode(encoding.partition(":")[0]))
    assert done.returncode == 65 and ("replace" in encoding or name in json.dumps(stated, ensure_ascii=False))


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "utf-8"])
def test_what_an_encoding_has_no_letter_for_ends_no_command(tmp_path: Path, encoding: str) -> None:
    row = {"messages": [{"role": "user", "content": "→ ü"}, {"role": "assistant", "content": "…"}]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row), encoding="utf-8")
    done = run("data", "check", "rows.jsonl", "--json", cwd=tmp_path, PYTHONIOENCODING=encoding)
    assert done.returncode == 0, done.stderr
    told = run("data", "check", "rows.jsonl", cwd=tmp_path, PYTHONIOENCODING=encoding)
    assert told.returncode == 0, told.stderr


def test_importing_the_command_line_imports_nothing_heavy() -> None:
    code = f"import sys, rankzero.cli.main; print(sorted(set(sys.modules) & set({HEAVY!r})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.strip() == "[]"


def test_the_first_process_of_a_container_is_ended_by_sigterm() -> None:
    """Whatever command it is: the kernel drops signals which that process has no handler for."""
    code = (
        "import time, rankzero.cli.main as command_line; from rankzero.__main__ import main;"
        "command_line.main = lambda: (print('begun', flush=True), time.sleep(600)); main()"
    )
    first = ["unshare", "--pid", "--fork", "--kill-child"]
    if shutil.which(first[0]) is None or subprocess.run([*first, "true"], check=False, capture_output=True).returncode:
        pytest.skip("needs to be allowed a namespace of processes")
    process = subprocess.Popen([*first, sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "begun\n"
        [inner] = psutil.Process(process.pid).children()
        inner.terminate()
        assert process.wait(60) == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.wait()


def test_reading_a_spec_imports_nothing_of_the_engine() -> None:
    code = (
        "import sys; from rankzero.spec.load import load_run_spec; from rankzero.spec.resolve import resolve;"
        "resolve(load_run_spec(None, ['model.name=m', 'data.train=t'], env={}).spec);"
        f"print(sorted(set(sys.modules) & set({HEAVY[:7]!r})))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.strip() == "[]"


def test_the_engine_s_libraries_say_nothing_by_themselves() -> None:
    """On CPUs with avx512_bf16 bitsandbytes advises a package as it is imported; here it does so on any. And none of
    them brings torch's compiler before anything is compiled, which alone takes seconds."""
    code = (
        "import logging, sys, rankzero.engine.worker, rankzero.model.merge;"
        "logging.getLogger('bitsandbytes.backends.cpu.ops').warning('Failed to load CPU gemm_4bit_forward');"
        "print([name for name in ('bitsandbytes', 'peft', 'torch._inductor.compile_fx') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert (done.stdout, done.stderr) == ("['bitsandbytes', 'peft']\n", "")


def test_the_first_line_comes_before_anything_is_imported(tmp_path: Path) -> None:
    """Nothing that takes a moment is in its way, whenever it is due: here, at once."""
    code = f"{AT_ONCE}from rankzero.__main__ import main; sys.argv[1:] = ['train', 'nope.yaml']; main()"
    command = [sys.executable, "-X", "importtime", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    before, _, after = done.stderr.partition("[STEP] rankzero train: look at the spec and at what it names\n")
    assert "rankzero.spec.load" in after, "the spec was looked at"
    imported = {line.rpartition("|")[2].strip() for line in before.splitlines() if line.startswith("import time")}
    assert "rankzero.errors" in imported
    assert not {name.partition(".")[0] for name in imported} & {*HEAVY, "typer", "click"}
    assert {name for name in imported if name.startswith("rankzero.")} == {
        *("rankzero.errors", "rankzero.collector", "rankzero.__main__", "rankzero.cli", "rankzero.cli.first_line"),
    } - ({"rankzero.__main__"} - imported)


def test_an_error_that_comes_at_once_stands_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also a step that is said meanwhile leaves the first line out, and so does the end of a command."""
    monkeypatch.setattr(sys, "argv", ["rankzero", "train", "nope.yaml"])
    for other, words in (
        (lambda: print_error(ConfigError("no such file", where="nope.yaml")), "error: nope.yaml: no such file\n"),
        (lambda: say_step("import torch"), "[STEP] import torch\n"),
        (leave_out_first_line, ""),
    ):
        timers: list[threading.Timer] = []
        monkeypatch.setattr(threading.Timer, "start", lambda timer, kept=timers: kept.append(timer))
        say_first_line()
        (timer,) = timers
        other()
        timer.run()
        assert capsys.readouterr().err.endswith(words) and timer.finished.is_set() and timer.daemon
    say_first_line()
    timers[-1].interval = 0
    timers[-1].run()
    assert capsys.readouterr().err.endswith("[STEP] rankzero train: look at the spec and at what it names\n")


@pytest.mark.parametrize(
    ("words", "env", "said"),
    [
        (["train", "run.yaml"], {}, True),
        (["generate", "runs/x", "why?"], {}, True),
        (["train", "run.yaml"], {"RANK": "0"}, True),
        (["train", "run.yaml"], {"RANK": "1"}, False),
        (["train", "run.yaml", "--json"], {}, False),
        (["train", "--help"], {}, False),
        (["list"], {}, False),
        ([], {}, False),
    ],
)
def test_who_says_a_first_line(words: list[str], env: dict[str, str], said: bool) -> None:
    """Not another process of the same run, and not where a program reads what comes."""
    line = first_line(words, env)
    assert (line is not None) is said
    assert line is None or line.startswith(f"rankzero {words[0]}: ")


def test_help_answers_at_once(tmp_path: Path) -> None:
    """280,000 calls, imports and all: 0.2 s of an idle machine."""
    assert calls_of_command("--help", cwd=tmp_path) < 400_000


@pytest.mark.parametrize(
    ("words", "code", "out", "err"),
    [
        (["--version"], 0, "rankzero ", ""),
        (["train"], 2, "", "error: nothing to train"),
        (["--nope"], 2, "", "error: --nope: no such option"),
        (["train", "nope.yaml"], 78, "", "error: nope.yaml: no such file"),
        (["init"], 0, "wrote run.yaml", ""),
    ],
)
def test_exit_codes(tmp_path: Path, words: list[str], code: int, out: str, err: str) -> None:
    done = run(*words, cwd=tmp_path)
    assert done.returncode == code
    assert done.stdout.startswith(out)
    first = done.stderr.splitlines()[:2]
    assert not err or any(line.startswith(err) for line in first)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_there_is_a_run(number: int, tmp_path: Path) -> None:
    """While the spec is read, here from a pipe that nobody writes to."""
    os.mkfifo(tmp_path / "run.yaml")
    process = subprocess.Popen(
        [sys.executable, "-m", "rankzero", "train", "run.yaml"], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    descriptor = os.open(tmp_path / "run.yaml", os.O_WRONLY)  # returns once the other side is reading
    try:
        err = signalled(process, number)
    finally:
        os.close(descriptor)
    assert process.returncode == 75, err
    assert "Traceback" not in err and "give the same command again" in err


def signalled(process: subprocess.Popen[str], number: int) -> str:
    """What a process says that is sent a signal until it has ended: one that arrives in the moment before a read begins
    to wait is seen by the interpreter only when the read ends."""
    for _ in range(60):
        process.send_signal(number)
        try:
            return process.communicate(timeout=1)[1]
        except subprocess.TimeoutExpired:
            continue
    process.kill()
    return process.communicate()[1]


def test_sigterm_while_the_command_line_is_imported(tmp_path: Path) -> None:
    """Before anything can have been trained: to a cluster that is a stop, not a failure."""
    (tmp_path / "typer.py").write_text(
        f"import pathlib, time\npathlib.Path({str(tmp_path / 'importing')!r}).touch()\ntime.sleep(600)\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])}
    command = [sys.executable, "-m", "rankzero", "train", "run.yaml"]
    process = subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "importing").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.terminate()
    _, err = process.communicate(timeout=300)
    assert process.returncode == 75 and "stopped: stopped by SIGTERM" in err.splitlines(), err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_before_the_engine_is_there_is_said(number: signal.Signals, tmp_path: Path, tiny: Path) -> None:
    """torch takes seconds to import, in which Ctrl-C is as likely as later."""
    (tmp_path / "torch.py").write_text(
        f"import pathlib, time\npathlib.Path({str(tmp_path / 'importing')!r}).touch()\ntime.sleep(600)\n"
    )
    (tmp_path / "rows.jsonl").write_text('{"text": "Hello"}\n')
    (tmp_path / "run.yaml").write_text(f"name: r\nmodel: {{name: {tiny}}}\ndata: {{train: rows.jsonl}}\n")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])}
    command = [sys.executable, "-m", "rankzero", "train", "run.yaml", "--nproc-per-node", "1"]
    process = subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "importing").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    err = signalled(process, number)
    assert process.returncode == 75 and f"stopped by {number.name}" in err and "Traceback" not in err, err


def test_sigterm_while_the_interpreter_ends_changes_no_outcome(tmp_path: Path) -> None:
    program = (
        "import atexit, os, signal; atexit.register(os.kill, os.getpid(), signal.SIGTERM)\n"
        "from rankzero.__main__ import main; main()"
    )
    command = [sys.executable, "-c", program, "train", "nope.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 78, done.stderr
