"""What is found out before anything large is imported: all at once, each at its line, with the right exit code."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from rankzero.api.specs import load_spec
from rankzero.errors import ConfigError, DataError, RankzeroError, StorageError
from rankzero.model.files import NAMED_AS_STORED
from rankzero.preflight import look, look_for_files
from rankzero.run_dir.lease import Lease
from rankzero.spec.load import load_run_spec, read_run_spec
from rankzero.spec.resolve import resolve
from tests.support.paper_model import paper_model
from tests.support.run_directory import run_directory
from tests.support.unreadable import close
from tests.unit.run_dir.test_setting import save

GOOD = """model: {name: m}
data: {train: train.jsonl}
lora: {r: 2}
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project that could be trained; the working directory."""
    project = tmp_path / "project"
    paper_model(project / "m")
    (project / "train.jsonl").write_text('{"text": "a"}\n', encoding="utf-8")
    (project / "run.yaml").write_text(GOOD, encoding="utf-8")
    monkeypatch.chdir(project)
    return project


def found(*overrides: str, path: str = "run.yaml") -> RankzeroError:
    with pytest.raises(RankzeroError) as caught:
        look(read_run_spec(Path(path), overrides, env=os.environ))
    return caught.value


def lines(error: RankzeroError) -> Sequence[str]:
    return [f"{problem.where}: {problem.what}" for problem in error.problems]


def test_nothing_is_wrong(project: Path) -> None:
    loaded = look(read_run_spec(Path("run.yaml"), env={}))
    assert loaded.base == project
    assert not (project / "runs").exists(), "looking makes nothing"


FIVE = """name: five
model: {name: ./nomodel}
data:
  train: trian.jsonl
  eval: nothere/*.jsonl
lora: {r: 2, droput: 0.1}
output_dir: run.yaml
"""


def test_five_mistakes_are_told_at_once_without_torch(project: Path) -> None:
    Path("five.yaml").write_text(FIVE, encoding="utf-8")
    code = (
        "import sys; from rankzero.cli.main import main; sys.argv[1:] = ['train', 'five.yaml']\n"
        "try: main()\nexcept SystemExit as end: code = end.code\n"
        "print(code, sorted({'torch', 'transformers', 'peft', 'datasets'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout == "78 []\n", done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert [error.split(": ")[1] for error in errors] == [
        "five.yaml:2 model.name",
        "five.yaml:4 data.train",
        "five.yaml:5 data.eval",
        "five.yaml:6 lora.droput",
        "five.yaml:7 output_dir",
    ]
    for words in ("no directory nomodel", "did you mean train.jsonl?", "no file matches", "lora.dropout", "run.yaml"):
        assert words in done.stderr


OF_ALL_KINDS = """name: many
model: {name: m}
data:
  train: trian.jsonl
  eval: one.jsonl
  max_length: 4096
lora: {r: 2, target_modules: [q_proj, up_porj]}
train: {num_train_epochs: lots}
output_dir: run.yaml
tracking: {langfuse: true}
"""


def test_what_is_wrong_in_every_part_is_told_at_once(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The spec itself, a path, the model's directory, its context and its layers, the run directory, a tracker; and
    what is only doubtful, first."""
    for name in ("LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY"):
        monkeypatch.delenv(name, raising=False)
    Path("many.yaml").write_text(OF_ALL_KINDS, encoding="utf-8")
    Path("one.jsonl").write_text('{"text": "a"}\n', encoding="utf-8")
    made_for("m", 1024)
    (project / "m/tokenizer.json").unlink()
    warned: list[str] = []
    with pytest.raises(ConfigError) as caught:
        look(read_run_spec(Path("many.yaml"), env={}), warn=lambda problem: warned.append(problem.where))
    assert warned == ["many.yaml:5 data.eval"]
    assert list(dict.fromkeys(problem.where for problem in caught.value.problems)) == [
        "many.yaml:2 model.name",
        "many.yaml:4 data.train",
        "many.yaml:6 data.max_length",
        "many.yaml:7 lora.target_modules",
        "many.yaml:8 train.num_train_epochs",
        "many.yaml:9 output_dir",
        "many.yaml:10 tracking.langfuse",
    ]


def made_for(model: str, tokens: int, **more: object) -> None:
    """Have a model's config say that it computes positions, for rows of so many tokens."""
    config = {"model_type": "llama", "max_position_embeddings": tokens, "rope_theta": 1e4, **more}
    Path(model, "config.json").write_text(json.dumps(config), encoding="utf-8")


def test_rows_that_are_asked_for_longer_than_the_context() -> None:
    made_for("m", 1024)
    look(read_run_spec(Path("run.yaml"), ["data.max_length=2048"], env={}))  # the default, and no wish
    error = found("data.max_length=2049")
    assert lines(error) == [
        "command line data.max_length: 2049 is beyond the model's context of 1024 tokens (max_position_embeddings)"
    ]
    assert error.problems[0].hint.startswith("set it to 1024;")
    look(read_run_spec(Path("run.yaml"), ["data.max_length=1024"], env={}))
    made_for("m", 1024, rope_scaling={"rope_type": "yarn", "factor": 4.0})
    warned: list[str] = []
    look(read_run_spec(Path("run.yaml"), ["data.max_length=2049"], env={}), warn=lambda p: warned.append(p.what))
    assert len(warned) == 1 and warned[0].endswith("its config stretches positions")


@pytest.mark.parametrize(("rows", "warns"), [(1, True), (2, False)])
def test_a_single_row_to_evaluate_on_is_doubtful(rows: int, warns: bool) -> None:
    Path("e.jsonl").write_text('{"text": "a"}\n\n' * rows, encoding="utf-8")
    warned: list[str] = []
    look(read_run_spec(Path("run.yaml"), ["data.eval=e.jsonl"], env={}), warn=lambda p: warned.append(p.what))
    assert [word.startswith("e.jsonl has one row") for word in warned] == [True] * warns


@pytest.mark.parametrize(
    "overrides",
    [
        *("train.activation_offloading=true", "train.offload=all train.sharding=fsdp"),
        *("model.kernels=liger", "model.attention=flash_attention_2", "model.attention=flex_attention"),
    ],
)
@pytest.mark.parametrize(("gpus", "system", "warns"), [(0, "Linux", True), (1, "Linux", False), (0, "Darwin", False)])
def test_what_only_a_gpu_has_a_use_for_is_doubtful_on_cpus(
    overrides: str, gpus: int, system: str, warns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankzero.preflight.local_gpu_count", lambda _env: gpus)
    monkeypatch.setattr("platform.system", lambda: system)  # a Mac has a GPU that no driver lists
    warned: list[str] = []
    look(read_run_spec(Path("run.yaml"), overrides.split(), env={}), warn=lambda p: warned.append(p.where))
    assert warned == [f"command line {overrides.partition('=')[0]}"] * warns


@pytest.mark.parametrize(
    ("override", "where", "words", "kind"),
    [
        ("data.train=nope.jsonl", "data.train", "nope.jsonl: no such file", DataError),
        ("data.train=empty.jsonl", "data.train", "empty.jsonl: the file is empty", DataError),
        (
            "data.train=[{path: train.jsonl, image_root: gone}]",
            "data.train[0].image_root",
            "no directory gone",
            ConfigError,
        ),
        (
            "data.train=[{path: train.jsonl, image_root: run.yaml}]",
            "data.train[0].image_root",
            "is a file",
            ConfigError,
        ),
        ("data.train=void", "data.train", "no data files", DataError),
        ("data.chat_template=t.jinja", "data.chat_template", "no file t.jinja", ConfigError),
        ("data.chat_template=m", "data.chat_template", "is a directory", ConfigError),
        ("model.name=x.gguf", "model.name", "no file x.gguf", ConfigError),
        ("model.name=train.jsonl", "model.name", "is a file, not a directory", ConfigError),
        ("model.name=./M", "model.name", "no directory M", ConfigError),
        ("model.local_dir=gone", "model.local_dir", "no directory gone", ConfigError),
        ("model.tokenizer_dir=void", "model.tokenizer_dir", "void: no tokenizer", ConfigError),
        ("model.name=./void", "model.name", "void: config.json is missing", ConfigError),
        ("model.name=org/absent", "model.name", "not in the local cache", ConfigError),
        ("lora.target_modules=[q_prjo]", "lora.target_modules", "no linear module q_prjo", ConfigError),
        ("lora.modules_to_save=[embed_token]", "lora.modules_to_save", "no module embed_token with", ConfigError),
        ("output_dir=train.jsonl", "output_dir", "train.jsonl is a file", StorageError),
        ("output_dir=s3://bucket/runs", "output_dir", "no directory", ConfigError),
        ("output_url=s4://bucket/runs", "output_url", "no kind of object store", ConfigError),
        ("output_url=s3://me:secret@bucket/runs", "output_url", "this holds a secret", ConfigError),
        ("output_url=runs", "output_url", "a URL such as", ConfigError),
    ],
)
def test_each_kind_of_mistake(override: str, where: str, words: str, kind: type[RankzeroError], project: Path) -> None:
    (project / "empty.jsonl").touch()
    (project / "void").mkdir()
    error = found(override)
    assert error.problems[0].where == f"command line {where}"
    assert words in error.problems[0].what
    assert type(error) is kind


def test_an_object_store_whose_package_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.registry import known_implementations

    monkeypatch.setitem(known_implementations, "gs", {"class": "no_such_package.Store"})
    error = found("output_url=gs://bucket/runs")
    assert "needs another package" in error.problems[0].what and "no_such_package" in error.problems[0].hint


def test_deepspeed_settings_are_json(project: Path) -> None:
    (project / "ds.json").write_text("{", encoding="utf-8")
    assert "is no JSON" in str(found("train.sharding=zero2", "train.deepspeed=ds.json"))


def test_what_a_directory_lacks_is_listed(project: Path) -> None:
    for name in ("config.json", "tokenizer.json"):
        (project / "m" / name).unlink()
    assert lines(found()) == [
        "run.yaml:1 model.name: m: config.json is missing",
        "run.yaml:1 model.name: m: no tokenizer: tokenizer.json is missing",
    ]


def test_weights_that_are_cut_off(project: Path) -> None:
    weights = project / "m/model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-3])
    assert f"cut off: {len(whole) - 3:,} bytes of {len(whole):,}" in str(found())
    weights.write_bytes(whole[:20])
    assert "damaged" in str(found())


def test_an_adapter_is_not_a_model(project: Path) -> None:
    (project / "m/model.safetensors").unlink()
    (project / "m/adapter_config.json").write_text("{}", encoding="utf-8")
    assert "this is an adapter, not a model" in str(found())


def test_names_of_layers_come_from_shards_too(project: Path) -> None:
    weights = project / "m/model.safetensors"
    weights.rename(project / "m/model-00001-of-00001.safetensors")
    index = {"weight_map": {"model.layers.0.self_attn.q_proj.weight": "model-00001-of-00001.safetensors"}}
    (project / "m/model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    (problem,) = found("lora.target_modules=[q_proj, v_proj]").problems
    assert (problem.what, problem.hint) == (
        "the model has no linear module v_proj",
        "auto takes this model's attention projections, all-linear all of: q_proj; did you mean q_proj?",
    )


def test_a_head_that_files_leave_out_says_how_it_is_trained(project: Path) -> None:
    weights = project / "m/model.safetensors"
    weights.rename(project / "m/model-00001-of-00001.safetensors")
    index = {"weight_map": {"model.layers.0.self_attn.q_proj.weight": "model-00001-of-00001.safetensors"}}
    (project / "m/model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    (problem,) = found("lora.target_modules=[q_proj, lm_head]").problems
    assert "adapters are not put on lm_head" in problem.what and "lora.modules_to_save: [lm_head]" in problem.hint


def test_a_head_that_is_made_as_the_model_is_loaded_may_be_named() -> None:
    """No file of the model has it, and the engine looks for the name in the model itself."""
    named = ["lora.modules_to_save=[pre_classifier, classifier]"]
    look(read_run_spec(Path("run.yaml"), ["task=classify", *named], env={}))
    assert [problem.what for problem in found(*named).problems] == [
        "the model has no module pre_classifier with weights",
        "the model has no module classifier with weights",
    ]


def test_names_are_not_judged_where_they_may_change_as_the_model_loads(project: Path) -> None:
    paper_model(project / "m", model_type="qwen3_moe", layers=["mlp.experts.0.gate_proj"])
    look(read_run_spec(Path("run.yaml"), ["lora.target_modules=[gate_up_proj]"], env={}))


def test_types_whose_names_are_judged_load_without_renaming() -> None:
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    assert set(CONFIG_MAPPING_NAMES) >= NAMED_AS_STORED
    assert not [name for name in NAMED_AS_STORED if get_checkpoint_conversion_mapping(name)]


def test_a_run_directory_that_is_in_use(project: Path) -> None:
    lease = Lease(project / "runs/r")
    lease.acquire()
    try:
        error = found("name=r")
    finally:
        lease.release()
    assert type(error) is StorageError
    assert f"runs/r is in use by process {os.getpid()}" in str(error)
    look(read_run_spec(Path("run.yaml"), ["name=r"], env={}))


def test_a_run_directory_that_may_be_a_copy_is_for_the_lease_to_watch(project: Path) -> None:
    """A snapshot of a volume has its inodes, on another device: refused here, nobody would ever watch it."""
    lease = Lease(project / "runs/r")
    lease.acquire()
    try:
        device, inode = (project / "runs/r").stat().st_dev, (project / "runs/r").stat().st_ino
        moved = {"directory": "/mounted/elsewhere", "identity": f"{device + 1}:{inode}"}
        lease.path.write_text(json.dumps(lease.read() | moved))
        look(read_run_spec(Path("run.yaml"), ["name=r"], env={}))
        lease.path.write_text(json.dumps(lease.read() | {"identity": f"{device}:{inode}"}))
        assert "is in use by" in str(found("name=r"))
    finally:
        lease.release()


def test_a_run_directory_that_another_setting_has_is_not_the_one_that_is_asked_for(project: Path) -> None:
    """With `resume: new` the run goes beside it, also while that one is under way."""
    save(load_spec("run.yaml", {"name": "r", "resume": "new"}))
    lease = Lease(project / "runs/r")
    lease.acquire()
    try:
        look(read_run_spec(Path("run.yaml"), ["name=r", "resume=new", "train.max_steps=3"], env={}))
        assert "is in use by" in str(found("name=r", "resume=new"))
        assert "is in use by" in str(found("name=r", "train.max_steps=3"))
    finally:
        lease.release()


def test_a_moved_run_says_that_it_is_trained_where_it_was(project: Path) -> None:
    run_directory(project / "runs/r")
    own = project / "runs/r/run.yaml"
    own.write_text(f"{GOOD}name: r\noutput_dir: {project}/runs\n", encoding="utf-8")
    typed = [f"model.name={project}/m", f"data.train={project}/train.jsonl"]

    def warned(path: str, *more: str) -> list[str]:
        told: list[str] = []
        look(read_run_spec(Path(path), [*typed, *more], env={}), warn=lambda problem: told.append(str(problem)))
        return told

    save(resolve(load_run_spec(own, typed, env={}).spec), step=61)
    for more in ([], ["name=r2"], ["name=null"], ["resume=new"], ["resume=continue"], ["name=null", "resume=new"]):
        assert warned("runs/r/run.yaml", *more) == [], more
        assert warned("runs/r/run.yaml", *more, "lora.r=16") == [], more
    shutil.copytree(project / "runs/r", project / "there/q")
    (told,) = warned("there/q/run.yaml")
    assert told.startswith("there/q/run.yaml:5 output_dir: this run was in runs/r and is trained there")
    hint = told.rpartition("to go on here: ")[2]
    assert warned("there/q/run.yaml", *shlex.split(hint)) == []
    assert warned("there/q/run.yaml", "resume=continue") == [told]
    shutil.copy(own, project / "again.yaml")
    assert warned("again.yaml") == [], "a spec that somebody took"


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_run_directory_that_cannot_be_written(project: Path) -> None:
    (project / "closed").mkdir(mode=0o500)
    error = found("output_dir=closed/runs")
    assert type(error) is StorageError and "closed cannot be written" in str(error)


def test_a_run_directory_that_can_have_no_such_name(project: Path) -> None:
    for place in ("x" * 300, f"new/{'x' * 300}/runs"):
        error = found(f"output_dir={place}")
        assert type(error) is StorageError and "takes no names of more than" in str(error)


def test_a_run_directory_that_may_not_be_looked_at_hides_no_other_finding(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "theirs").mkdir()
    close(monkeypatch, project / "theirs")
    error = found("output_dir=theirs/runs")
    assert type(error) is StorageError and "theirs cannot be written" in str(error)
    places = [problem.where for problem in found("output_dir=theirs/runs", "data.train=nope.jsonl").problems]
    assert len(places) == 2, places


def test_a_model_that_may_not_be_looked_at_is_a_finding(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paper_model(project / "theirs/m")
    close(monkeypatch, project / "theirs")
    error = found("model.local_dir=theirs/m")
    assert type(error) is ConfigError and "theirs/m" in str(error)


def test_of_several_kinds_the_exit_code_is_of_what_never_mends_itself(project: Path) -> None:
    assert type(found("data.train=nope.jsonl", "output_dir=train.jsonl")) is DataError
    assert type(found("data.train=nope.jsonl", "lora.r=x")) is ConfigError


class TestTheWrongDirectory:
    """Only the working directory has what a spec in another one names."""

    @pytest.fixture
    def spec(self, project: Path, tmp_path: Path) -> Path:
        (tmp_path / "specs").mkdir()
        spec = tmp_path / "specs/run.yaml"
        spec.write_text(GOOD + "name: r\n", encoding="utf-8")
        return spec

    def test_it_is_said_with_both_ways_out(self, spec: Path) -> None:
        error = found(path=str(spec))
        assert type(error) is ConfigError
        model, train = error.problems
        assert model.where == f"{spec}:1 model.name"
        assert "relative to its file, and only the working directory has m" in model.what
        assert train.hint == "write ../project/train.jsonl, or give data.train=train.jsonl on the command line"

    def test_both_ways_out_work(self, spec: Path, tmp_path: Path) -> None:
        look(read_run_spec(spec, ["model.name=m", "data.train=train.jsonl"], env={}))
        spec.write_text(
            spec.read_text().replace("m}", "../project/m}").replace("train.jsonl", "../project/train.jsonl")
        )
        loaded = look(read_run_spec(spec, env={}))
        assert loaded.spec.data.train == "../project/train.jsonl"

    def test_the_file_beside_the_spec_is_taken(self, spec: Path, tmp_path: Path) -> None:
        (tmp_path / "specs/train.jsonl").write_text('{"text": "b"}\n', encoding="utf-8")
        paper_model(tmp_path / "specs/m")
        look(read_run_spec(spec, env={}))

    def test_a_run_that_is_here_is_not_begun_anew_there(self, spec: Path, project: Path) -> None:
        (project / "runs/r").mkdir(parents=True)
        (project / "runs/r/run.yaml").touch()
        ways = ["model.name=m", "data.train=train.jsonl"]
        with pytest.raises(ConfigError, match="this run is in runs/r already"):
            look(read_run_spec(spec, ways, env={}))
        look(read_run_spec(spec, [*ways, "output_dir=runs"], env={}))

    def test_where_paths_are_those_of_pods(self, spec: Path) -> None:
        with pytest.raises(ConfigError, match="only the working directory has train.jsonl"):
            look_for_files(read_run_spec(spec, env={}))
        look_for_files(read_run_spec(spec, ["model.name=org/m", "data.train=/outputs/t.jsonl"], env={}))


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ("model.revision=main", ["model.revision"]),
        ("model.revision=main model.local_dir=m model.name=a/b", []),  # the result is of that revision
        ("data.image_max_tokens=64", ["data.image_max_tokens"]),
    ],
)
def test_what_a_model_that_is_here_has_no_use_for_is_said(overrides: str, told: list[str], project: Path) -> None:
    warned: list[str] = []
    look(read_run_spec(Path("run.yaml"), overrides.split(), env={}), warn=lambda p: warned.append(p.where.split()[-1]))
    assert warned == told
    config = json.loads((project / "m" / "config.json").read_text(encoding="utf-8"))
    (project / "m" / "config.json").write_text(json.dumps(config | {"vision_config": {}}), encoding="utf-8")
    warned.clear()
    look(read_run_spec(Path("run.yaml"), overrides.split(), env={}), warn=lambda p: warned.append(p.where.split()[-1]))
    assert warned == [field for field in told if field == "model.revision"]
