"""What `rankzero export` writes is what the result says, whole or not there; and it goes to the Hub when asked to."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForCausalLM, AutoTokenizer

import rankzero
from rankzero.errors import StorageError, UsageError
from rankzero.model.files import weight_files
from rankzero.model.gguf_export import tensors_of
from rankzero.model.merge import merge
from rankzero.model.push import sent_files
from rankzero.run_dir import atomic
from rankzero.run_dir.atomic import verify_directory
from rankzero.run_dir.card import CARD, Card, Licence
from tests.support.cli import Cli
from tests.support.gguf import known_tokenizer, wide_config
from tests.support.servers import TakingHub, serving
from tests.support.tiny import tiny_tokenizer
from tests.support.tiny_configs import CONFIGS
from tests.support.unreadable import stale
from tests.unit.model.support import CLASSES, logits
from tests.unit.model.test_merge import distance, trained


def whole(root: Path, **changes: Any) -> Path:
    """A model with its tokenizer and card, committed as a run commits final/."""
    spec, _ = trained("llama", root, **changes)
    made = Card(name="r", base="base", base_id=None, licence=Licence(), kind="causal", form="whole")
    merge(spec.model, root / "final", root / "whole", card=made)
    return root / "whole"


def left_behind(root: Path) -> list[str]:
    return [path.name for path in root.iterdir() if path.name.startswith(".tmp-")]


def test_an_adapter_becomes_a_model_in_shards(tmp_path: Path, cli: Cli) -> None:
    _, adapted = trained("llama", tmp_path)
    done = cli(f"export {tmp_path}/final -o {tmp_path}/out --shard-size 8KB --json")
    assert done.code == 0, done.err
    said = json.loads(done.out)
    shards = weight_files(tmp_path / "out")
    assert said["files"] == len(shards) > 2 and said["bytes"] == sum(file.stat().st_size for file in shards)
    assert "rounding explains" in said["notes"][0]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    assert distance(logits(model), logits(adapted)) < 1e-5
    verify_directory(tmp_path / "out")


def test_a_whole_model_is_the_same_to_the_last_bit(tmp_path: Path, cli: Cli) -> None:
    source = whole(tmp_path, dtype=torch.bfloat16)
    done = cli(f"export {source} -o {tmp_path}/out --shard-size 8KB")
    assert done.code == 0, done.err
    before = load_file(source / "model.safetensors")
    after = {name: t for file in weight_files(tmp_path / "out") for name, t in load_file(file).items()}
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    assert f"{len(weight_files(tmp_path / 'out'))} files of weights" in done.out
    largest = max(tensor.numel() * 2 for tensor in before.values())
    assert all(file.stat().st_size < max(8000, largest) + 3000 for file in weight_files(tmp_path / "out"))
    for name in ("config.json", "tokenizer.json", "generation_config.json", "chat_template.jinja", CARD, "merge.json"):
        assert (tmp_path / "out" / name).read_bytes() == (source / name).read_bytes()
    assert verify_directory(tmp_path / "out")["card"] == verify_directory(source)["card"]
    AutoModelForCausalLM.from_pretrained(tmp_path / "out")


@pytest.mark.parametrize("form", ["adapter", "whole"])
def test_chat_templates_that_have_names_come_along(form: str, tmp_path: Path, cli: Cli) -> None:
    trained("llama", tmp_path)
    named = tmp_path / "final/additional_chat_templates"
    named.mkdir()
    (named / "tool_use.jinja").write_text("{{ tools }}")
    target = tmp_path / "final"
    if form == "whole":
        assert cli(f"merge {target} -o {tmp_path}/whole").code == 0
        target = tmp_path / "whole"
        assert AutoTokenizer.from_pretrained(target).chat_template["tool_use"] == "{{ tools }}"
    done = cli(f"export {target} -o {tmp_path}/out --shard-size 8KB")
    assert done.code == 0, done.err
    templates = AutoTokenizer.from_pretrained(tmp_path / "out").chat_template
    assert templates == AutoTokenizer.from_pretrained(tmp_path / "final").chat_template
    assert templates.keys() == {"default", "tool_use"}
    verify_directory(tmp_path / "out")


def test_everything_that_is_wrong_is_said_at_once(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    trained("llama", tmp_path)
    done = cli(f"export {tmp_path}/final --to gguf -o {tmp_path}/x --repo a/b --shard-size big")
    assert done.code == 2 and done.err.count("error:") == 3
    (tmp_path / "there.gguf").touch()
    done = cli(f"export {tmp_path}/final --to gguf -o {tmp_path}/there.gguf")
    assert done.code == 78 and "there is something already" in done.err
    assert "converter is not installed" in done.err and "--no-deps --target" in done.err
    done = cli(f"export {tmp_path}/nothing -o {tmp_path}/out")
    assert done.code == 78 and "there is no such run" in done.err
    assert cli(f"export {tmp_path} -o {tmp_path}/out").code == 78
    (tmp_path / "out").mkdir()
    assert "there is something already" in cli(f"export {tmp_path}/final -o {tmp_path}/out").err
    assert not left_behind(tmp_path) and not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("-o {0}/x.gguf", ["-o {0}/x.gguf: this is the name of a GGUF file"]),
        ("-o {0}/x --type q8_0", ["--type: only --to gguf has types"]),
        ("-o {0}/x.gguf --type auto", ["this is the name of a GGUF file", "--type: only --to gguf has types"]),
        ("--to gguf -o {0}/x.gguf --shard-size 5GB", ["--shard-size: only --to safetensors has several files"]),
        (
            "--to hub --repo a/b --base trained --model m --type auto --shard-size 5GB",
            [
                "--base: --to hub merges nothing",
                "--model: --to hub merges nothing",
                "--type: only",
                "--shard-size: only",
            ],
        ),
    ],
)
def test_what_does_not_belong_to_the_form_is_refused(flags: str, said: list[str], tmp_path: Path, cli: Cli) -> None:
    """Whatever it says, the default too: nothing that was asked for is left undone in silence."""
    trained("llama", tmp_path)
    done = cli(f"export {tmp_path}/final {flags.format(tmp_path)}")
    assert done.code == 2 and done.err.count("error:") == len(said), done.err
    for words in said:
        assert words.format(tmp_path) in done.err
    with pytest.raises(UsageError, match="name of a GGUF file"):
        rankzero.export(tmp_path / "final", tmp_path / "x.gguf")
    assert not (tmp_path / "x.gguf").exists() and not left_behind(tmp_path)


def converter(root: Path, body: str) -> Path:
    """A program that stands in for llama.cpp's."""
    root.mkdir(exist_ok=True)
    (root / "convert_hf_to_gguf.py").write_text(
        f"import os, sys\nout = sys.argv[sys.argv.index('--outfile') + 1]\n{body}"
    )
    return root


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("open(out, 'w').write('half'); sys.exit('ERROR: Model TinyForCausalLM is not supported')", "is not supported"),
        ("open(out, 'w').write('this is no such file')", "the converter wrote no GGUF file"),
        ("", "the converter wrote no GGUF file"),
        ("", "by hand"),
        ("print('Vocabulary only')", "hint: it said last: Vocabulary only"),
        ("print('Vocabulary only'); sys.exit('ERROR: 42 layers')", "ended with 1: ERROR: 42 layers"),
    ],
)
def test_a_conversion_that_fails_leaves_nothing(body: str, says: str, tmp_path: Path, cli: Cli) -> None:
    trained("llama", tmp_path)
    program = converter(tmp_path / "program", body)
    done = cli(f"export {tmp_path}/final --to gguf -o {tmp_path}/out/m.gguf --converter {program}")
    assert done.code == 78 and says in done.err
    assert not list((tmp_path / "out").iterdir()) and not left_behind(tmp_path)


def test_braces_in_a_name_are_its_own(tmp_path: Path, cli: Cli) -> None:
    """The converter takes them for the type's place in the name; another mistake of a name leaves nothing either."""
    source = whole(tmp_path)
    body = """
out = os.path.join(os.path.dirname(out), os.path.basename(out).format(ftype="f16"))
open(out, "wb").write(b"GGUF" + (3).to_bytes(4, "little") + (21).to_bytes(8, "little") + bytes(8))
"""
    program = converter(tmp_path / "program", body)
    for name in ("x-{ftype}.gguf", "{}/{0}{.gguf"):
        done = cli(f"export {source} --to gguf -o '{tmp_path}/{name}' --converter {program}")
        assert done.code == 0, done.err
        assert tensors_of(tmp_path / name) == 21
    assert not left_behind(tmp_path) and not left_behind(tmp_path / "{}")


def test_what_comes_to_stand_there_meanwhile_stays(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    source = whole(tmp_path)
    place = tmp_path / "my.gguf"
    body = """
import pathlib
pathlib.Path(PLACE).write_text("somebody's")
open(out, "wb").write(b"GGUF" + (3).to_bytes(4, "little") + (21).to_bytes(8, "little") + bytes(8))
"""
    program = converter(tmp_path / "program", body.replace("PLACE", repr(str(place))))
    done = cli(f"export {source} --to gguf -o {place} --converter {program}")
    assert done.code == 78 and f"{place}: something has come to stand here meanwhile" in done.err
    assert place.read_text() == "somebody's" and not left_behind(tmp_path)
    place.unlink()

    def without_links(*_arguments: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", without_links)
    done = cli(f"export {source} --to gguf -o {place} --converter {program}")
    assert done.code == 78 and place.read_text() == "somebody's" and not left_behind(tmp_path)
    place.unlink()
    program = converter(tmp_path / "program", body.replace("pathlib.Path(PLACE)", "pathlib.Path(os.devnull)"))
    assert cli(f"export {source} --to gguf -o {place} --converter {program}").code == 0
    assert tensors_of(place) == 21 and not left_behind(tmp_path)


def test_a_signal_ends_the_conversion_and_leaves_nothing(tmp_path: Path) -> None:
    """Of an adapter: the merged model is there by then."""
    trained("llama", tmp_path)
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    body = f"""
import signal
open(out, "w").write("half")
with open({str(ready)!r}, "w") as told:
    told.write(str(os.getpid()))
signal.pause()
"""
    program = converter(tmp_path / "program", body)
    words = ["export", str(tmp_path / "final"), "--to", "gguf", "-o", str(tmp_path / "m.gguf"), "--converter"]
    with subprocess.Popen([sys.executable, "-m", "rankzero", *words, str(program)]) as process:
        converting = int(ready.read_text())
        assert len(left_behind(tmp_path)) == 2, "the merged model, and half a file"
        process.terminate()
        assert process.wait() == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(converting, 0)
    assert not left_behind(tmp_path) and not (tmp_path / "m.gguf").exists()


@pytest.mark.parametrize(
    ("text", "mode", "says"),
    [
        ("no program", 0o644, "may not be run"),
        ("no program", 0o755, "cannot be run: Exec format error"),
        ("#!/no/such/interpreter\n", 0o755, "cannot be run: No such file"),
    ],
)
def test_a_converter_that_cannot_be_run_is_not_the_output_s_fault(
    text: str, mode: int, says: str, tmp_path: Path, cli: Cli
) -> None:
    trained("llama", tmp_path)
    program = tmp_path / "convert"
    program.write_text(text)
    program.chmod(mode)
    done = cli(f"export {tmp_path}/final --to gguf -o {tmp_path}/m.gguf --converter {program}")
    assert done.code == 78 and says in done.err and f"--converter {program}" in done.err, done.err
    assert not (tmp_path / "m.gguf").exists() and not left_behind(tmp_path)


def test_the_converter_is_told_what_it_needs(tmp_path: Path, cli: Cli) -> None:
    """No network, the type, a name; of an adapter it gets a model that is whole, and gone afterwards."""
    trained("llama", tmp_path)
    body = """
import json, pathlib
assert os.environ["HF_HUB_OFFLINE"] == "1"
assert (pathlib.Path(sys.argv[1]) / "model.safetensors").is_file()
open(out, "wb").write(b"GGUF" + (3).to_bytes(4, "little") + (21).to_bytes(8, "little") + bytes(8))
pathlib.Path(__file__).with_name("told").write_text(json.dumps(sys.argv[1:]))
"""
    program = converter(tmp_path / "program", body)
    done = cli(f"export {tmp_path}/final --to gguf --type q8_0 -o {tmp_path}/my.gguf --converter {program} --json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["notes"][0] == "21 tensors" and tensors_of(tmp_path / "my.gguf") == 21
    told = json.loads((program / "told").read_text())
    assert told[told.index("--outtype") + 1] == "q8_0" and told[told.index("--model-name") + 1] == "my"
    assert not Path(told[0]).exists() and not left_behind(tmp_path)


_SAYS_WHAT_IT_IS_GIVEN = """
import pathlib
model, here = pathlib.Path(sys.argv[1]), pathlib.Path(__file__).parent
assert (model / "model.safetensors").is_file() and (model / "config.json").is_file()
(here / "given.json").write_text((model / "tokenizer_config.json").read_text())
open(out, "wb").write(b"GGUF" + (3).to_bytes(4, "little") + (21).to_bytes(8, "little") + bytes(8))
"""


def taught_to_end(source: Path, end: str, *, post_processor: bool = False, writes_eos: bool = False) -> None:
    """A model whose chat template writes `end` behind answers, at which its tokenizer does not stop; `writes_eos`: and
    the tokenizer's end behind questions."""
    ends = "{{ '" + end + "' if m.role == 'assistant' else eos_token }}" if writes_eos else end
    tokenizer = tiny_tokenizer(
        specials=("<|endoftext|>", "<|im_start|>", "<|im_end|>", end),
        eos="<|endoftext|>",
        chat_template="{% for m in messages %}{{ m.role }}: {{ m.content }}" + ends + "{% endfor %}",
    )
    ids = {name: tokenizer.convert_tokens_to_ids(name) for name in ("<|endoftext|>", end)}
    if post_processor:
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single="$A <|endoftext|>", special_tokens=[("<|endoftext|>", ids["<|endoftext|>"])]
        )
    tokenizer.save_pretrained(source)
    config = source / "generation_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "eos_token_id": list(ids.values())}))
    (source / "manifest.json").unlink()  # of the files before


@pytest.mark.parametrize(
    ("end", "prompts", "given", "says"),
    [
        ("<|done|>", {}, "<|done|>", "its end token is <|done|>, which ends an answer, in the place of <|endo"),
        ("<|done|>", {"post_processor": True}, "<|endoftext|>", "llama.cpp does not stop at <|done|>"),
        ("<|done|>", {"writes_eos": True}, "<|endoftext|>", "llama.cpp does not stop at <|done|>"),
        ("<|eot_id|>", {}, "<|endoftext|>", ""),
    ],
)
def test_a_gguf_file_ends_where_training_taught_it_to(
    end: str, prompts: dict[str, bool], given: str, says: str, tmp_path: Path, cli: Cli
) -> None:
    """A file has one end token, in no prompt that had another; ends that llama.cpp knows by name are left alone."""
    source = whole(tmp_path)
    taught_to_end(source, end, **prompts)
    before = (source / "tokenizer_config.json").read_bytes()
    program = converter(tmp_path / "program", _SAYS_WHAT_IT_IS_GIVEN)
    done = cli(f"export {source} --to gguf -o {tmp_path}/m.gguf --converter {program} --json")
    assert done.code == 0, done.err
    assert json.loads((program / "given.json").read_text())["eos_token"] == given
    notes = [note for note in json.loads(done.out)["notes"] if end in note]
    assert len(notes) == bool(says) and all(note.startswith(says) for note in notes)
    assert (source / "tokenizer_config.json").read_bytes() == before and not left_behind(tmp_path)


def test_a_gguf_file_s_template_is_told_of_with_what_it_was_given(tmp_path: Path, cli: Cli) -> None:
    spec, _ = trained("llama", tmp_path)
    made = Card("r", "base", None, Licence(), "causal", "whole", chat_template_kwargs={"it's": [1]})
    merge(spec.model, tmp_path / "final", tmp_path / "whole", card=made)
    program = converter(tmp_path / "program", _SAYS_WHAT_IT_IS_GIVEN)
    done = cli(f"export {tmp_path}/whole --to gguf -o {tmp_path}/m.gguf --converter {program}")
    assert done.code == 0, done.err
    (line,) = [line for line in done.out.splitlines() if "--chat-template-kwargs" in line]
    assert json.loads(shlex.split(line)[-1]) == {"it's": [1]}


def test_what_gguf_is_not_for_is_said(tmp_path: Path, cli: Cli) -> None:
    spec, _ = trained("distilbert", tmp_path, data__labels=CLASSES)
    merge(spec.model, tmp_path / "final", tmp_path / "classifier", labels=CLASSES)
    program = converter(tmp_path / "program", "sys.exit('never asked')")
    done = cli(f"export {tmp_path}/classifier --to gguf -o {tmp_path}/m.gguf --converter {program}")
    assert done.code == 78 and "puts texts into classes" in done.err


def pushing(directory: Path, repo: str, url: str, home: Path, *flags: str) -> subprocess.Popen[str]:
    """The command in a process of its own: the Hub's client reads its environment as it is imported."""
    env = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    env |= {"HF_ENDPOINT": url, "HF_HOME": str(home), "HF_TOKEN": "hf_canarycanarycanary"}
    command = [sys.executable, "-m", "rankzero", "export", str(directory), "--to", "hub", "--repo", repo, *flags]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def pushed(directory: Path, repo: str, url: str, home: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    with pushing(directory, repo, url, home, *flags) as process:
        out, err = process.communicate()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def test_a_result_is_pushed_on_request(tmp_path: Path) -> None:
    class Hub(TakingHub):
        pass

    source = whole(tmp_path)
    with serving(Hub) as url:
        done = pushed(source, "me/mine", url, tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"{url}/me/mine (private)\n" and Hub.made == {"me/mine": True}
        files = Hub.files["me/mine"]
        here = {path.name for path in source.iterdir()} - {"manifest.json", "merge.json"}
        assert files.keys() == here, "all but what says where things lay on this machine"
        assert all(files[name] == (source / name).read_bytes() for name in here)
        assert not [name for name, content in files.items() if str(tmp_path).encode() in content]
        assert Hub.tokens == {"Bearer hf_canarycanarycanary"} and "canary" not in done.stdout + done.stderr
        again = pushed(source, "me/mine", url, tmp_path)
        assert again.returncode == 78 and "there is such a repository already" in again.stderr
        assert Hub.made == {"me/mine": True} and Hub.deleted == []


def test_no_place_of_this_machine_is_pushed_however_deep_it_lies(tmp_path: Path) -> None:
    """Of a model that was merged inside the result, where cards of before had people write it; somebody's own files
    come along."""

    class Hub(TakingHub):
        pass

    source = whole(tmp_path)
    spec, _ = trained("llama", tmp_path / "other")
    merge(spec.model, tmp_path / "other/final", source / "merged")
    (source / "merged/.secret").write_text("hf_abcdefghijklmnopqrstuvwx")
    for name in ("notes/[1].md", "notes/merge.json", "notes/.git/config", "site/manifest.json", "site/index.html"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("{}" if name.endswith(".md") else str(tmp_path))
    (source / "site/index.html").write_text("own")
    with serving(Hub) as url:
        done = pushed(source, "me/mine", url, tmp_path)
        assert done.returncode == 0, done.stderr
        files = Hub.files["me/mine"]
    assert {name for name in files if "/" in name} == {"notes/[1].md", "site/index.html"}
    assert "model.safetensors" in files and CARD in files
    assert not [name for name, content in files.items() if str(tmp_path).encode() in content]


def test_a_result_inside_that_cannot_be_told_is_not_pushed_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.safetensors").write_text("weights")
    inside = tmp_path / "merged"
    for number in (atomic.FORMAT, atomic.FORMAT + 1):  # also one of a newer version
        staged = tmp_path / "staged"
        staged.mkdir()
        (staged / "model.safetensors").write_text("other weights")
        with monkeypatch.context() as patch:
            patch.setattr(atomic, "FORMAT", number)
            atomic.commit_directory(staged, inside, {})
        assert [path.parent for path in sent_files(tmp_path)] == [tmp_path]
    stale(monkeypatch, inside / "manifest.json")
    with pytest.raises(StorageError, match="Stale file handle"):
        sent_files(tmp_path)


def test_a_repository_without_an_owner_is_that_of_the_token(tmp_path: Path) -> None:
    class Hub(TakingHub):
        pass

    with serving(Hub) as url:
        done = pushed(whole(tmp_path), "mine", url, tmp_path)
        assert done.returncode == 0 and done.stdout == f"{url}/me/mine (private)\n", done.stderr
        assert Hub.made == {"me/mine": True} and Hub.files.keys() == {"me/mine"}


def test_of_a_push_that_fails_nothing_is_left(tmp_path: Path) -> None:
    class Hub(TakingHub):
        refuses = ("/commit/", 403)

    source = whole(tmp_path)
    with serving(Hub) as url:
        done = pushed(source, "me/mine", url, tmp_path, "--public")
    assert done.returncode == 77 and "the Hub refused" in done.stderr and "canary" not in done.stderr
    assert Hub.made == {} and Hub.deleted == ["me/mine"] and Hub.files == {}


@pytest.mark.usefixtures("hung_up_on")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_of_a_push_that_is_stopped_nothing_is_left(number: signal.Signals, tmp_path: Path) -> None:
    """Asked to stop while the files are on their way: the repository is there by then."""
    sending, gone = threading.Event(), threading.Event()

    class Hub(TakingHub):
        def commits(self) -> bool:
            self.send_response(200)
            self.end_headers()
            sending.set()
            with suppress(OSError):  # who asked is gone
                while not gone.wait(0.01):  # a byte wakes it: one that is asked just before it waits would not hear
                    self.wfile.write(b" ")
            return False

    source = whole(tmp_path)
    with serving(Hub) as url, pushing(source, "me/mine", url, tmp_path) as process:
        try:
            while not sending.wait(0.1):
                assert process.poll() is None, "it has ended before its files were on their way"
            assert Hub.made == {"me/mine": True}
            process.send_signal(number)
            assert process.wait() == 128 + number
            assert Hub.made == {} and Hub.deleted == ["me/mine"] and Hub.files == {}
        finally:
            gone.set()


def test_what_keeps_a_push_from_others_is_said_before_anything_is_sent(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An adapter of a base that lies here; a secret in a file; no token, no name, no network."""
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    trained("llama", tmp_path)
    (tmp_path / "final/chat_template.jinja").write_text("hf_abcdefghijklmnopqrstuvwx")
    done = cli(f"export {tmp_path}/final --to hub --repo not/a/name")
    assert done.code == 78 and done.err.count("error:") == 5, done.err
    for said in ("a repository is named", "network is not to be used", "no token", "a directory of this machine"):
        assert said in done.err
    assert "there is a secret in it" in done.err and "hf_abc" not in done.err


def test_a_push_says_how_an_adapter_names_its_base(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """--model would name it for a merge; nothing is merged, and who takes the adapter from the Hub has no flags."""
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    trained("llama", tmp_path)
    config = tmp_path / "final/adapter_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "base_model_name_or_path": None}))
    done = cli(f"export {tmp_path}/final --to hub --repo a/b")
    assert done.code == 78 and "--model" not in done.err, done.err
    assert "write base_model_name_or_path into adapter_config.json" in done.err and "no token" in done.err
    done = cli(f"export {tmp_path}/final -o {tmp_path}/out")
    assert done.code == 78 and "give --model, or write base_model_name_or_path" in done.err


LLAMA_CPP = Path(sys.prefix) / "llama.cpp"
needs_llama_cpp = pytest.mark.skipif(
    not (LLAMA_CPP / "xllamacpp").is_dir(),
    reason=f"llama.cpp and its converter are not in {LLAMA_CPP}; see the Makefile",
)
_ASK = """
import json, sys
sys.path.insert(0, sys.argv[1])
import xllamacpp
settings = xllamacpp.CommonParams()
settings.model.path, settings.n_ctx, settings.n_parallel, settings.warmup = sys.argv[2], 64, 1, False
settings.cpuparams.n_threads = settings.cpuparams_batch.n_threads = settings.n_threads_http = 1
server = xllamacpp.Server(settings)
asked = {"prompt": json.loads(sys.argv[3]), "max_tokens": 6, "temperature": 0, "logprobs": 20, "ignore_eos": True}
said = server.handle_completions(asked)["choices"][0]["logprobs"]["content"]
print(json.dumps([{top["id"]: top["logprob"] for top in one["top_logprobs"]} for one in said]))
"""


def llama_cpp_says(file: Path, ids: list[int]) -> list[dict[int, float]]:
    """llama.cpp's own log-probabilities of the likeliest tokens, for each of six that it writes."""
    command = [sys.executable, "-c", _ASK, str(LLAMA_CPP), str(file), json.dumps(ids)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [{int(token): value for token, value in one.items()} for one in json.loads(done.stdout.splitlines()[-1])]


def assert_says_the_same(model: Any, ids: list[int], said: list[dict[int, float]], off: float) -> None:
    """Greedy tokens are the same, and so are the log-probabilities of the 20 likeliest at each."""
    assert len(said) == 6
    for tops in said:
        with torch.no_grad():
            expected = model(torch.tensor([ids])).logits[0, -1].float().log_softmax(-1)
        assert len(tops) == 20 and max(abs(expected[token] - value) for token, value in tops.items()) < off
        ids = [*ids, max(tops, key=tops.__getitem__)]
        assert off > 0.01 or ids[-1] == int(expected.argmax())


@needs_llama_cpp
@pytest.mark.parametrize(
    ("name", "types"),
    [
        ("llama", ("f32", "q8_0")),
        *(pytest.param(name, ("f32",), marks=pytest.mark.slow) for name in ("qwen2", "qwen3")),
    ],
)
def test_llama_cpp_says_what_the_result_says(
    name: str, types: tuple[str, ...], tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An adapter of each family as GGUF, read by llama.cpp itself and by transformers."""
    monkeypatch.setitem(CONFIGS, name, wide_config(name))
    _, adapted = trained(name, tmp_path, model_vocabulary=600)
    program = known_tokenizer(name, tmp_path, LLAMA_CPP)
    ids = [5, 9, 17, 33, 21, 40, 8, 3]
    for outtype in types:
        off = {"f32": 2e-3, "q8_0": 0.1}[outtype]
        file = tmp_path / f"{outtype}.gguf"
        done = cli(f"export {tmp_path}/final --to gguf --type {outtype} -o {file} --converter {program}")
        assert done.code == 0, done.err
        assert_says_the_same(adapted, ids, llama_cpp_says(file, ids), off)
    read = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="f32.gguf", dtype=torch.float32).eval()
    assert distance(logits(read), logits(adapted)) < 1e-4
    assert AutoTokenizer.from_pretrained(tmp_path, gguf_file="f32.gguf").eos_token_id is not None


@needs_llama_cpp
def test_the_taught_end_is_in_the_file(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CONFIGS, "llama", wide_config("llama"))
    source = whole(tmp_path, model_vocabulary=600)
    taught_to_end(source, "<|done|>")
    program = known_tokenizer("llama", tmp_path, LLAMA_CPP)
    done = cli(f"export {source} --to gguf -o {tmp_path}/m.gguf --converter {program}")
    assert done.code == 0, done.err
    read = AutoTokenizer.from_pretrained(tmp_path, gguf_file="m.gguf")
    assert read.eos_token == "<|done|>"
    assert read.encode("a text") == AutoTokenizer.from_pretrained(source).encode("a text")
