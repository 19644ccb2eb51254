"""run.yaml and settings into a RunSpec: where values come from, and every problem at once, at its line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from rankzero.errors import ConfigError, Problem, UsageError
from rankzero.spec.load import Loaded, Setting, load_run_spec
from rankzero.spec.run_spec import EvalFraction, RunSpec

SMALL = "model: {name: m}\ndata: {train: t.jsonl}\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(text: str, *overrides: str | Setting, env: Mapping[str, str] | None = None) -> Loaded[RunSpec]:
    Path("run.yaml").write_text(text, encoding="utf-8")
    return load_run_spec(Path("run.yaml"), overrides, env=env or {})


def problems(text: str, *overrides: str | Setting, env: Mapping[str, str] | None = None) -> Sequence[Problem]:
    with pytest.raises(ConfigError) as caught:
        load(text, *overrides, env=env)
    return caught.value.problems


def the_problem(text: str, *overrides: str | Setting, env: Mapping[str, str] | None = None) -> Problem:
    (problem,) = problems(text, *overrides, env=env)
    return problem


@pytest.mark.usefixtures("here")
class TestValues:
    def test_the_smallest_spec(self) -> None:
        assert load(SMALL).spec == RunSpec.model_validate({"model": {"name": "m"}, "data": {"train": "t.jsonl"}})

    @pytest.mark.parametrize(
        ("line", "field", "value"),
        [
            ("train: {learning_rate: 2e-4}", "train.learning_rate", 2e-4),
            ("train: {learning_rate: '2e-4'}", "train.learning_rate", 2e-4),
            ("train: {max_steps: 1e3}", "train.max_steps", 1000),
            ("train: {gradient_checkpointing: yes}", "train.gradient_checkpointing", True),
            ("tracking: {tensorboard: off}", "tracking.tensorboard", False),
            ("name: on", "name", "on"),
            ("name: 2024", "name", "2024"),
            ("output_dir: 007", "output_dir", "007"),
            ("lora: {}", "lora.r", 8),
            ("lora: null", "lora", None),
            ("lora: {target_modules: [1, q]}", "lora.target_modules", ("1", "q")),
            ("train:", "train.global_batch_size", 16),
            ("train: {max_grad_norm: }", "train.max_grad_norm", None),
        ],
    )
    def test_written_values(self, line: str, field: str, value: object) -> None:
        found: object = load(f"{SMALL}{line}\n").spec
        for name in field.split("."):
            found = getattr(found, name)
        assert found == value
        assert type(found) is type(value)

    @pytest.mark.parametrize(
        ("text", "env", "value"),
        [
            ("${N:-10}", {}, 10),
            ("${N:-10}", {"N": "20"}, 20),
            ('"${N}"', {"N": "20"}, 20),
            ("${N}0", {"N": "2"}, 20),
            ("${N:-null}", {}, None),
        ],
    )
    def test_variables_are_expanded_before_types(self, text: str, env: dict[str, str], value: int | None) -> None:
        assert load(f"{SMALL}train:\n  max_steps: {text}\n", env=env).spec.train.max_steps == value

    def test_a_byte_order_mark_and_windows_lines(self, here: Path) -> None:
        (here / "w.yaml").write_bytes(b"\xef\xbb\xbf" + SMALL.replace("\n", "\r\n").encode())
        assert load_run_spec(Path("w.yaml"), env={}).spec.model.name == "m"


@pytest.mark.usefixtures("here")
class TestOverrides:
    @pytest.mark.parametrize(
        ("text", "field", "value"),
        [
            ("train.learning_rate=1e-4", "train.learning_rate", 1e-4),
            ("lora=null", "lora", None),
            ("lora.r=4", "lora.r", 4),
            ("lora.target_modules=[q_proj,v_proj]", "lora.target_modules", ("q_proj", "v_proj")),
            ("data.eval={fraction: 0.1}", "data.eval", EvalFraction(fraction=0.1)),
            ("data.eval.fraction=0.1", "data.eval", EvalFraction(fraction=0.1)),
            ("model.name=a=b", "model.name", "a=b"),
            ("name=", "name", None),
            ("data.train=[{path: a}]", "data.train[0].path", None),
        ],
    )
    @pytest.mark.parametrize("base", [SMALL, f"{SMALL}lora: null\n", f"{SMALL}lora: {{r: 2}}\nname: n\n"])
    def test_values(self, base: str, text: str, field: str, value: object) -> None:
        found: object = load(base, text).spec
        if "[" in field:
            return
        for name in field.split("."):
            found = getattr(found, name)
        assert found == value

    def test_the_last_one_wins(self) -> None:
        assert load(SMALL, "train.seed=1", Setting("train.seed", 2, "--seed"), "train.seed=3").spec.train.seed == 3

    def test_a_path_gives_way_to_what_is_set_inside_it(self) -> None:
        text = "model: {name: m}\ndata: {train: t, eval: e.jsonl}\n"
        assert load(text, "data.eval.fraction=0.5").spec.data.eval == EvalFraction(fraction=0.5)

    def test_what_only_the_chat_template_knows(self) -> None:
        text = f"{SMALL.rstrip()[:-1]}, chat_template_kwargs: {{documents: [{{title: x}}], enable_thinking: true}}}}\n"
        spec = load(text, "data.chat_template_kwargs.enable_thinking=false").spec
        assert spec.data.chat_template_kwargs == {"documents": [{"title": "x"}], "enable_thinking": False}

    def test_an_override_mends_the_file(self) -> None:
        text = "model: {name: '${NOPE}'}\ndata: {train: t}\ntrain: {max_steps: x}\n"
        assert load(text, "model.name=m", "train.max_steps=3").spec.train.max_steps == 3

    def test_without_a_file(self) -> None:
        assert load_run_spec(None, ["model.name=m", "data.train=t"], env={}).spec.data.train == "t"

    @pytest.mark.parametrize(
        ("written", "name"),
        [
            ("hf://meta-llama/Llama-3.2-1B-Instruct", "meta-llama/Llama-3.2-1B-Instruct"),
            (" hf://o/m-1.5 ", "o/m-1.5"),
        ],
    )
    def test_a_hub_id_may_be_written_as_initializers_of_kubeflow_want_it(self, written: str, name: str) -> None:
        assert load(SMALL, Setting("model.name", written, "--model")).spec.model.name == name

    def test_keep_existing(self) -> None:
        setting = Setting("lora.r", 5, "--lora", keep_existing=True)
        assert load(SMALL, setting).spec.lora is not None
        assert load(f"{SMALL}lora: null\n", setting).spec.lora is not None
        loaded = load(f"{SMALL}lora: {{r: 9}}\n", setting)
        assert loaded.spec.lora is not None
        assert loaded.spec.lora.r == 9

    @pytest.mark.parametrize("text", ["train.max_steps", "=3", "a b=3", "train.=3", ".a=1", ""])
    def test_what_is_no_override(self, text: str) -> None:
        with pytest.raises(UsageError, match="cannot read"):
            load(SMALL, text)

    def test_a_value_that_is_no_yaml(self) -> None:
        with pytest.raises(UsageError, match="not YAML") as caught:
            load(SMALL, "model.name=[1,")
        assert caught.value.problems[0].where == "command line model.name"

    def test_problems_name_their_source(self) -> None:
        found = problems(SMALL, "data.max_length=4", "foo=1", Setting("train.seed", -1, "--seed"))
        assert [problem.where for problem in found] == [
            "command line foo",
            "command line data.max_length",
            "--seed train.seed",
        ]

    def test_a_section_that_is_text_is_still_complained_of(self) -> None:
        problem = the_problem("model: {name: m}\ndata: t.jsonl\n", "data.max_length=99")
        assert problem.where == "run.yaml:2 data"
        assert problem.hint == "write data: {train: t.jsonl}"

    def test_what_is_missing_is_missing_from_the_file(self) -> None:
        assert the_problem("model: {name: m}\n", "data.max_length=99").where == "run.yaml data.train"


@pytest.mark.usefixtures("here")
class TestOrigins:
    def test_where(self) -> None:
        loaded = load(f"{SMALL}train:\n  seed: 1\n", "lora.r=2", Setting("name", "n", "--output"))
        assert loaded.where("train.seed") == "run.yaml:4 train.seed"
        assert loaded.where("train.max_steps") == "run.yaml:3 train.max_steps"
        assert loaded.where("eval.every") == "run.yaml eval.every"
        assert loaded.where("lora.r") == "command line lora.r"
        assert loaded.where("name") == "--output name"
        assert loaded.source("lora") == "command line"
        assert loaded.source("train") == "run.yaml"
        assert loaded.source("eval") is None


@pytest.mark.usefixtures("here")
class TestProblems:
    def test_all_at_once(self) -> None:
        text = """\
model:
  nmae: m
data:
  train: t.jsonl
  max_length: 4
train:
  max_steps: 10
  warmup_steps: 10
  lr_scheduler_type: lineer
sequence_len: 2048
output_dir: ${OUT}
output_dir: twice
eval: {every: 0}
"""
        found = problems(text)
        assert [problem.where for problem in found] == [
            "run.yaml:2 model.nmae",
            "run.yaml:5 data.max_length",
            "run.yaml:8 train.warmup_steps",
            "run.yaml:9 train.lr_scheduler_type",
            "run.yaml:10 sequence_len",
            "run.yaml:11 output_dir",
            "run.yaml:12 output_dir",
            "run.yaml:13 eval.every",
        ]
        assert [problem.hint for problem in found[:2]] == [
            "did you mean model.name?",
            "Tokens per row at most. Default: 2048.",
        ]
        assert found[4].hint == "this is data.max_length here"

    def test_problems_of_different_sources_in_one_report(self) -> None:
        assert len(problems("model: {}\n", "lora.r=0", "data.max_length=x", env={})) == 4

    @pytest.mark.parametrize(
        ("line", "where", "what", "hint"),
        [
            (
                "train: {max_steps: many}",
                "train.max_steps",
                'must be a whole number of at least 1, but is "many"',
                "Stop after",
            ),
            ("train: {max_steps: 2.5}", "train.max_steps", "must be a whole number of at least 1, but is 2.5", ""),
            ("train: {max_steps: true}", "train.max_steps", 'but is "true"', ""),
            ("data: {train: [t.jsonl]}", "data.train[0]", "a section with keys such as path", "write {path: t.jsonl}"),
            ("model: m", "model", "a section with keys such as name", "write model: {name: m}"),
            ("data: {train: t, labels: [a]}", "data.labels", "a list of text with at least 2 items, but is a list", ""),
            ("train: {weight_decay: true}", "train.weight_decay", "must be a number of at least 0, but is", ""),
            ("train: {weight_decay: .inf}", "train.weight_decay", "but is inf", ""),
            ("train: {max_grad_norm: .INF}", "train.max_grad_norm", "but is inf", "null: do not clip"),
            ("train: {seed: }", "train.seed", "but is empty", "Default: 42."),
            ("train: {adam_beta1: 1}", "train.adam_beta1", "a number of at least 0 and below 1, but is 1", ""),
            (
                "train: {lr_scheduler_type: cosin}",
                "train.lr_scheduler_type",
                "must be `linear`, `cosine` or `constant`, but is",
                "did you mean cosine?",
            ),
            ("model: {name: m, dtype: bf16}", "model.dtype", "`bfloat16`", "did you mean bfloat16?"),
            ("model: {name: m, dtype: fp16}", "model.dtype", "`float16`", "did you mean float16?"),
            ("model: {name: m, dtype: torch.float16}", "model.dtype", "`float16`", "did you mean float16?"),
            ("model: {name: m, dtype: Half}", "model.dtype", "`float16`", "did you mean float16?"),
            ("model: {name: m, dtype: fp32}", "model.dtype", "`float32`", "did you mean float32?"),
            ("model: {name: m, dtype: torch.bfloat16}", "model.dtype", "`bfloat16`", "did you mean bfloat16?"),
            ("model: {name: m, dtype: int8}", "model.dtype", "`float16`", "Compute precision."),
            ("model: {name: m, quantization: 4bit}", "model.quantization", "`nf4`", "did you mean nf4?"),
            ("model: {name: m, attention: fa2}", "model.attention", "`eager`", "did you mean flash_attention_2?"),
            ("train: {sharding: full_shard}", "train.sharding", "`fsdp`", "did you mean fsdp?"),
            ("train: {optimizer: paged-adamw-8bit}", "train.optimizer", "`adamw`", "did you mean adamw_8bit?"),
            ("task: causal_lm", "task", "must be `sft`", "did you mean sft?"),
            ("train: {learning_rate: fast}", "train.learning_rate", "must be `auto` or a number above 0", "auto: 2e-4"),
            (
                "train: {gradient_checkpointing: 3}",
                "train.gradient_checkpointing",
                "must be `auto` or true or false",
                "",
            ),
            ("lora: {target_modules: q}", "lora.target_modules", "`auto`, `all-linear` or a list of text", "[q]"),
            ("lora: {target_modules: []}", "lora.target_modules", "but is an empty list", ""),
            ("lora: {target_modules: [[a]]}", "lora.target_modules[0]", "must be text, but is a list", ""),
            ("lora: true", "lora", "must be a section with keys such as r", "write lora: {} for its defaults"),
            ("lora: false", "lora", "must be a section with keys such as r", "leave it out"),
            ("lora: 8", "lora", "must be a section with keys such as r, but is 8", ""),
            (
                "tracking: tensorboard",
                "tracking",
                "must be a section with keys such as tensorboard, but is",
                "",
            ),
            ("lora:", "lora", "this section is empty", "lora: {} takes its defaults"),
            ("name: a/b", "name", "must be a name of up to 100 letters, digits", ""),
            ("eval: {every: 0}", "eval.every", "must be `epoch` or a whole number of at least 1, but is 0", ""),
            ("task: sftt", "task", "must be `sft`", "did you mean sft?"),
            (f"name: {'x' * 300}", "name", "…", ""),
        ],
    )
    def test_values_that_a_field_does_not_take(self, line: str, where: str, what: str, hint: str) -> None:
        base = "" if line.startswith("data") else "data: {train: t}\n"
        base += "" if line.startswith("model") else "model: {name: m}\n"
        problem = the_problem(f"{base}{line}\n")
        assert problem.where.partition(" ")[2] == where
        assert what in problem.what
        assert hint in problem.hint
        assert len(problem.what) < 250

    @pytest.mark.parametrize(
        ("data", "where", "what"),
        [
            ("{train: []}", "data.train", "a list of {path, format, columns, weight, …}, but is an empty list"),
            ("{train: {path: a}}", "data.train", "but is a mapping"),
            ("{train: ''}", "data.train", 'but is ""'),
            ("{train: [{path: a, format: mesages}]}", "data.train[0].format", "`messages`"),
            ("{train: [{format: auto}]}", "data.train[0].path", "required, but not set"),
            (
                "{train: t, chat_template_kwargs: {a: [1, {b: .NaN}]}}",
                "data.chat_template_kwargs.a[1].b",
                "must be a finite number, but is nan",
            ),
            ("{train: [a.jsonl]}", "data.train[0]", 'must be a section with keys such as path, but is "a.jsonl"'),
            ("{train: t, eval: {fraction: 2}}", "data.eval.fraction", "must be a number above 0 and below 1"),
            ("{train: t, eval: {}}", "data.eval.fraction", "required"),
            ("{train: t, eval: {fracton: 0.1}}", "data.eval.fracton", "unknown key"),
            ("{train: t, eval: {fracton: .inf}}", "data.eval.fracton", "unknown key"),
            ("{train: t, eval: [{path: ''}]}", "data.eval[0].path", "must be text"),
        ],
    )
    def test_unions_make_one_problem(self, data: str, where: str, what: str) -> None:
        problem = the_problem(f"model: {{name: m}}\ndata: {data}\n")
        assert problem.where == f"run.yaml:2 {where}"
        assert what in problem.what

    @pytest.mark.parametrize(
        ("text", "where"),
        [
            ("name: x\n", ["run.yaml model.name", "run.yaml data.train"]),
            ("model:\n  dtype: auto\ndata:\n", ["run.yaml:1 model.name", "run.yaml:3 data.train"]),
            ("model: {name: }\ndata: {train: t}\n", ["run.yaml:1 model.name"]),
        ],
    )
    def test_what_is_required(self, text: str, where: list[str]) -> None:
        assert [problem.where for problem in problems(text)] == where

    def test_contradictions_beside_other_problems(self) -> None:
        text = f"{SMALL}train: {{max_steps: 5, warmup_steps: 9}}\nlora: {{r: 0}}\n"
        assert [problem.where for problem in problems(text)] == ["run.yaml:3 train.warmup_steps", "run.yaml:4 lora.r"]

    def test_no_contradiction_with_a_value_that_is_wrong_itself(self) -> None:
        text = "model: {name: m}\ndata: {train: t, evl: e}\neval: {early_stopping_patience: 2}\n"
        assert the_problem(text).hint == "did you mean data.eval?"


@pytest.mark.usefixtures("here")
class TestFiles:
    @pytest.mark.parametrize(
        ("name", "content", "where", "what", "hint"),
        [
            ("nope.yaml", None, "nope.yaml", "no such file", "rankzero init"),
            ("run.yml", None, "run.yml", "no such file", "did you mean run.yaml?"),
            (".", None, ".", "this is a directory", ""),
            ("e.yaml", b"", "e.yaml", "the file is empty", "rankzero init"),
            ("c.yaml", b"# only a comment\n", "c.yaml", "the file is empty", ""),
            ("l.yaml", b"- a\n", "l.yaml", "must hold sections", "model:"),
            ("s.yaml", b"hello\n", "s.yaml", "must hold sections", "model:"),
            ("u.yaml", b"a: 1\nb: \xff\n", "u.yaml:2", "not UTF-8", "save the file as UTF-8"),
            ("sub/x.yaml", None, "sub/x.yaml", "no such file", ""),
            ("run.yaml/x", None, "run.yaml/x", "cannot read it: Not a directory", ""),
        ],
    )
    def test_files_that_are_no_spec(
        self, here: Path, name: str, content: bytes | None, where: str, what: str, hint: str
    ) -> None:
        (here / "run.yaml").write_text(SMALL, encoding="utf-8")
        if content is not None:
            (here / name).write_bytes(content)
        with pytest.raises(ConfigError) as caught:
            load_run_spec(Path(name), env={})
        (problem,) = caught.value.problems
        assert problem.where == where
        assert what in problem.what
        assert hint in problem.hint
