"""Classes from a classifier: the library's own probabilities, whatever is batched with what."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils import logging

from rankzero.api.results import predict
from rankzero.errors import ConfigError, DataError, NonFiniteError, RankzeroError, UsageError
from rankzero.model.load import padding_counts
from rankzero.model.predict import _kinds, classify, load_classifier
from rankzero.run_dir.result import as_it_was
from rankzero.spec.run_spec import RunSpec
from tests.support.architectures import save
from tests.support.cli import Cli
from tests.support.tiny import tiny_tokenizer
from tests.support.too_little_memory import out_of_memory_beyond

TEXTS = ["a warm and moving story .", "dull", "the cast is superb , " * 20, "the plot is a mess"] * 12
CPU = torch.device("cpu")


def spec(model: Path, **data: Any) -> RunSpec:
    return RunSpec.model_validate({"task": "classify", "model": {"name": str(model)}, "data": {"train": "t", **data}})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier of three classes as transformers saves one."""
    directory = save("distilbert", tmp_path_factory.mktemp("trained"))
    torch.manual_seed(1)
    names = {0: "bad", 1: "so-so", 2: "good"}
    model = AutoModelForSequenceClassification.from_pretrained(directory, id2label=names)
    model.classifier.weight.data *= 30  # sure of itself, so that rounding does not decide
    model.save_pretrained(directory)
    return directory


def test_the_librarys_own_probabilities(trained: Path) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(trained).eval()
    tokenizer = AutoTokenizer.from_pretrained(trained)
    found = list(classify(load_classifier(as_it_was(spec(trained)), torch.float32, CPU), TEXTS))
    assert len(found) == len(TEXTS)
    for text, prediction in zip(TEXTS[:4], found, strict=False):
        with torch.no_grad():
            logits = model(**tokenizer(text, return_tensors="pt", return_token_type_ids=False)).logits[0]
        expected = dict(zip(("bad", "so-so", "good"), logits.softmax(0).tolist(), strict=True))
        assert prediction.probabilities == pytest.approx(expected, abs=1e-5)
        assert prediction.label == max(expected, key=expected.__getitem__)
    assert [prediction.label for prediction in found] == [prediction.label for prediction in found[:4]] * 12


def test_a_token_without_an_embedding_is_named(trained: Path, tmp_path: Path) -> None:
    """As rows with one are refused, not an index that is out of range."""
    shutil.copytree(trained, tmp_path / "longer")
    tokenizer = AutoTokenizer.from_pretrained(trained)
    tokenizer.add_tokens([f"<seen-{n}>" for n in range(200)])
    tokenizer.save_pretrained(tmp_path / "longer")
    classifier = load_classifier(as_it_was(spec(tmp_path / "longer")), torch.float32, CPU)
    with pytest.raises(DataError, match=r"text 2: the model has no embedding for token \d+, '<seen-199>'"):
        list(classify(classifier, ["dull", "a <seen-199> plot"]))
    assert len(list(classify(classifier, TEXTS[:3]))) == 3


def test_predictions_that_nobody_takes_leave_the_process_as_it_was(trained: Path) -> None:
    logging.set_verbosity_info()
    before = logging.is_progress_bar_enabled()
    try:
        predictions = iter(predict(str(trained), TEXTS))
        next(predictions)
        assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == (logging.INFO, before)
    finally:
        logging.set_verbosity_warning()


def test_long_texts_are_cut_as_in_training(trained: Path) -> None:
    short = load_classifier(as_it_was(spec(trained, max_length=8)), torch.float32, CPU)
    whole, cut = classify(short, ["a warm and moving story .", "a warm and moving story . the plot is a mess"])
    assert whole.probabilities == pytest.approx(cut.probabilities, abs=1e-6)
    unbounded = load_classifier(as_it_was(spec(trained)), torch.float32, CPU)
    whole, cut = classify(unbounded, ["dull " * 126, "dull " * 2000])  # the model has 128 positions
    assert whole.probabilities == pytest.approx(cut.probabilities, abs=1e-6)


def test_texts_are_cut_at_a_models_context(tmp_path: Path) -> None:
    """Of one that computes its positions, and was made for no more."""
    tokenizer = tiny_tokenizer(chat_template=None)
    config = AutoConfig.for_model("llama", **{**SIZES, "vocab_size": len(tokenizer)}, max_position_embeddings=24)
    config.pad_token_id = tokenizer.eos_token_id
    AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    whole, cut = classify(load_classifier(as_it_was(spec(tmp_path)), torch.float32, CPU), ["Hello " * 6, "Hello " * 9])
    assert whole.probabilities == pytest.approx(cut.probabilities, abs=1e-6)


@pytest.mark.parametrize("architecture", ["distilbert", "qwen3"])
def test_a_text_without_tokens_is_named(architecture: str, tmp_path: Path) -> None:
    """Whether or not the tokenizer puts marks around every text."""
    directory = save(architecture, tmp_path)
    AutoModelForSequenceClassification.from_pretrained(directory).save_pretrained(directory)
    classifier = load_classifier(as_it_was(spec(directory)), torch.float32, CPU)
    assert len(list(classify(classifier, ["fine"]))) == 1
    with pytest.raises(DataError) as refused:
        list(classify(classifier, ["", "fine", " \n"]))
    assert [(problem.what, problem.where) for problem in refused.value.problems] == [
        ("this text has no tokens", "text 1"),
        ("this text has no tokens", "text 3"),
    ]


def test_bytes_that_are_no_text_are_refused(trained: Path) -> None:
    """As a terminal of another encoding gives them, by `predict --text`."""
    with pytest.raises(UsageError) as raised:
        predict(str(trained), ["dull", b"caf\xe9".decode(errors="surrogateescape")])
    assert [(problem.what, problem.where) for problem in raised.value.problems] == [("it is not UTF-8", "text 2")]


def test_a_table_without_names_of_columns(trained: Path, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "rows.csv").write_text("dull it is.,5\nwarm,1\n")
    command = f"predict {trained} {tmp_path}/rows.csv --columns text=column_1"
    done = cli(command)
    assert done.code == 65 and "--no-header" in done.err
    done = cli(f"{command} --no-header")
    assert done.code == 0 and [line.split("\t")[2] for line in done.out.splitlines()] == ["dull it is.", "warm"]


def test_what_is_no_number_is_no_class(trained: Path, tmp_path: Path) -> None:
    """The first class would be the likeliest, and the shares no JSON."""
    model = AutoModelForSequenceClassification.from_pretrained(trained)
    dull = AutoTokenizer.from_pretrained(trained)("dull")["input_ids"][1]
    model.distilbert.embeddings.word_embeddings.weight.data[dull] = torch.nan
    model.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(trained).save_pretrained(tmp_path)
    classifier = load_classifier(as_it_was(spec(tmp_path)), torch.float32, CPU)
    assert len(list(classify(classifier, ["superb"]))) == 1
    with pytest.raises(NonFiniteError) as refused:
        list(classify(classifier, ["superb", "dull", "superb", "it is dull"]))
    assert [problem.where for problem in refused.value.problems] == ["text 2", "text 4"]
    assert "NaN or Inf" in str(refused.value)


def test_an_adapters_classes(tmp_path: Path, trained: Path) -> None:
    """An adapter brings its own head, for classes that its base knows nothing of."""
    from peft import LoraConfig, get_peft_model

    base = save("distilbert", tmp_path / "base")
    torch.manual_seed(2)
    adapted = get_peft_model(
        AutoModelForSequenceClassification.from_pretrained(base, num_labels=4),
        LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["q_lin"], modules_to_save=["pre_classifier"]),
    )
    for name, parameter in adapted.named_parameters():
        if "classifier.modules_to_save" in name or "lora_B" in name:
            torch.nn.init.normal_(parameter)
    adapted.save_pretrained(tmp_path / "adapter")
    labels = ("a", "b", "c", "d")
    classifier = load_classifier(
        replace(as_it_was(spec(base)), adapter=tmp_path / "adapter", labels=labels), torch.float32, CPU
    )
    (found,) = classify(classifier, ["the plot is a mess"])
    ids = torch.tensor([next(iter(classifier.encoder.encode(_rendered("the plot is a mess")))).ids])
    with torch.no_grad():
        expected = adapted.eval()(input_ids=ids).logits[0].softmax(0).tolist()
    assert list(found.probabilities.values()) == pytest.approx(expected, abs=1e-5)
    assert tuple(found.probabilities) == labels


def test_an_adapter_without_names_of_classes_is_refused(tmp_path: Path) -> None:
    model = save("distilbert", tmp_path)
    with pytest.raises(ConfigError, match="does not say which classes"):
        load_classifier(replace(as_it_was(spec(model)), adapter=tmp_path / "adapter"), torch.float32, CPU)


def test_a_model_without_a_trained_head_is_refused(tmp_path: Path) -> None:
    for name in ("distilbert", "qwen3"):
        model = save(name, tmp_path / name)
        with pytest.raises(ConfigError, match=r"no trained classifier.*\n.*rankzero generate"):
            load_classifier(as_it_was(spec(model)), torch.float32, CPU)


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({"problem_type": "multi_label_classification"}, "a text may have several of its classes, or none"),
        ({"problem_type": "regression"}, "it says numbers of a text, and no classes"),
        ({"id2label": {0: "score"}}, "it says numbers of a text, and no classes"),
        ({"id2label": {0: "bad", 1: "good", 2: "bad"}}, "two of its classes have one name: bad"),
    ],
)
def test_what_puts_no_text_into_one_class_is_refused(
    config: dict[str, Any], what: str, trained: Path, tmp_path: Path
) -> None:
    """Others' models: shares that sum to one would say something else than the model does, or leave a class out."""
    made = AutoConfig.from_pretrained(trained, **config)
    AutoModelForSequenceClassification.from_config(made).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(trained).save_pretrained(tmp_path)
    with pytest.raises(ConfigError) as refused:
        load_classifier(as_it_was(spec(tmp_path)), torch.float32, CPU)
    (problem,) = refused.value.problems
    assert problem.what == what and problem.where == str(tmp_path / "config.json") and problem.hint


def _rendered(text: str) -> list[Any]:
    from rankzero.data.tokens.chat import Rendered

    return [Rendered(text, [], raw=True, add_eos=False, label="")]


SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64}
TOGETHER = {
    **dict.fromkeys(("bert", "distilbert", "electra", "roberta", "llama", "convbert", "fnet", "yoso"), SIZES),
    "nystromformer": {**SIZES, "num_landmarks": 4, "segment_means_seq_len": 4},
    "xlnet": {"d_model": 32, "d_inner": 48, "n_layer": 2, "n_head": 4, "vocab_size": 64},
    "funnel": {"d_model": 32, "d_inner": 48, "block_sizes": [1, 1, 1], "n_head": 4, "d_head": 8, "vocab_size": 64},
    "distilbert": {"dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4, "vocab_size": 64},
    "canine": {key: value for key, value in SIZES.items() if key != "vocab_size"},
}


@pytest.mark.parametrize("model_type", TOGETHER)
def test_whether_padding_counts(model_type: str) -> None:
    """Seen by what a model says of a text alone, and of the same one filled up to another's length."""
    config = AutoConfig.for_model(model_type, **TOGETHER[model_type], pad_token_id=0)
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_config(config).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    text = torch.randint(3, 60, (1, 7))
    filled, mask = torch.zeros(1, 12, dtype=torch.long), torch.zeros(1, 12, dtype=torch.long)
    filled[:, :7], mask[:, :7] = text, 1
    with torch.no_grad():
        alone = model(input_ids=text, attention_mask=torch.ones_like(text)).logits
        found = model(input_ids=filled, attention_mask=mask).logits
    assert padding_counts(config) is not torch.allclose(found, alone, rtol=1e-6, atol=1e-8)


LONGROPE = {
    "rope_type": "longrope",
    "original_max_position_embeddings": 24,
    "short_factor": [1.0] * 4,
    "long_factor": [4.0, 6.0, 8.0, 8.0],
}


@pytest.mark.parametrize(
    ("model_type", "context", "rope"),
    [("phi3", 128, LONGROPE), ("llama", 24, {"rope_type": "dynamic", "factor": 8.0})],
)
def test_a_class_knows_nothing_of_how_long_texts_beside_it_are(
    model_type: str, context: int, rope: dict[str, Any], tmp_path: Path
) -> None:
    """Nor before it, of a model that has other frequencies for longer rows than 24 tokens: for all of them, as Phi-3,
    or for each length. The longest texts differ in what is behind the 24 tokens."""
    tokenizer = tiny_tokenizer(chat_template=None)
    more = {"num_key_value_heads": 2, "vocab_size": len(tokenizer), "max_position_embeddings": context}
    more |= {"original_max_position_embeddings": 24} if context > 24 else {}
    rope = {**rope, "rope_theta": 1e4}
    config = AutoConfig.for_model(model_type, **{**SIZES, **more}, rope_parameters=rope, pad_token_id=0, num_labels=3)
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_config(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    classifier = load_classifier(as_it_was(spec(tmp_path)), torch.float32, CPU)
    texts = ["Hello " * n for n in (40, 2, 4, 30, 3)]
    alone = [next(classify(load_classifier(as_it_was(spec(tmp_path)), torch.float32, CPU), [text])) for text in texts]
    for one, beside in zip(alone, classify(classifier, texts), strict=True):
        assert beside.probabilities == pytest.approx(one.probabilities, abs=1e-5)
    assert alone[0].probabilities != pytest.approx(alone[3].probabilities, abs=1e-5)


@pytest.mark.parametrize(("model_type", "kinds"), [("bert", [0] * 4), ("xlnet", [3, 5, 3, 7])])
def test_texts_of_one_length_share_a_pass_where_padding_counts(model_type: str, kinds: list[int]) -> None:
    assert _kinds(AutoConfig.for_model(model_type), [[1] * length for length in (3, 5, 3, 7)]) == kinds


def test_texts_that_memory_runs_out_of_together_are_asked_in_smaller_passes(trained: Path) -> None:
    classifier = load_classifier(as_it_was(spec(trained)), torch.float32, CPU)
    whole = list(classify(classifier, TEXTS))
    with out_of_memory_beyond(classifier.model, rows=3) as passes:
        found = list(classify(classifier, TEXTS))
    assert max(passes) == 3 and len(passes) < len(TEXTS)
    for one, beside in zip(found, whole, strict=True):
        assert one.probabilities == pytest.approx(beside.probabilities, abs=1e-5)
    with out_of_memory_beyond(classifier.model, rows=0), pytest.raises(RankzeroError, match="out of memory") as ended:
        list(classify(classifier, TEXTS[:3]))
    assert ended.value.problems[0].where == "text 3" and ended.value.problems[0].hint
