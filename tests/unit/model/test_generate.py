"""Answers of every kind of model that writes: the library's own, one at a time or many at once."""

from __future__ import annotations

import copy
import logging
import os
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, decoders, models, processors
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from rankzero.data.prompts import Prompt, read_questions
from rankzero.data.prompts import question as asked_of
from rankzero.data.rows.conversation import Conversation, Message
from rankzero.data.rows.formats import convert
from rankzero.data.tokens import template as chat_templates
from rankzero.data.tokens.chat import Rendered, Renderer, TokenRules
from rankzero.data.tokens.row_tokens import Encoder
from rankzero.data.tokens.tokenizer import take_apart
from rankzero.engine.chat import Chat, Voice, open_voices
from rankzero.engine.distributed import World
from rankzero.engine.goodput import Ledger
from rankzero.engine.held_out import ask_all, require_askable
from rankzero.engine.inputs import read_inputs
from rankzero.engine.references import References
from rankzero.engine.setup import to_train
from rankzero.engine.text_scores import without_reasoning
from rankzero.errors import ConfigError, DataError, NonFiniteError, RankzeroError, UsageError
from rankzero.model.converse import _Told, reply
from rankzero.model.generate import (
    Speaker,
    Turn,
    answer,
    load_speaker,
    prompt_ids,
    replies_together,
    text_of,
)
from rankzero.model.generate import reply as reply_to
from rankzero.model.load import load_config, load_model, load_tokenizer
from rankzero.model.source import locate
from rankzero.model.weights import export_final
from rankzero.run_dir.result import as_it_was, find_result
from rankzero.spec.resolve import to_yaml
from rankzero.spec.run_spec import RunSpec, SourceSpec
from rankzero.spec.sampling import Sampling
from tests.held_out.dialogues import DIALOGUES
from tests.held_out.families import tokenizer as held_out_tokenizer
from tests.support.architectures import save
from tests.support.families import FAMILIES, family_tokenizer
from tests.support.images import draw
from tests.support.tiny import CHATML, tiny_gpt2, tiny_model, tiny_tokenizer, write_jsonl
from tests.support.too_little_memory import out_of_memory_beyond

CPU = torch.device("cpu")
QUESTIONS = ["Which colour is it?", "What is the capital of Peru? " * 3, "Hi"]


def speaker_of(directory: Path, **changes: Any) -> Speaker:
    value = {"model": {"name": str(directory), **changes.pop("model", {})}, "data": {"train": "t"}, **changes}
    return load_speaker(as_it_was(RunSpec.model_validate(value)), torch.float32, CPU)


def loud(speaker: Speaker) -> Speaker:
    """Weights so large that random numbers have clear favourites: rounding decides nothing."""
    for parameter in speaker.model.parameters():
        parameter.data *= 3
    return speaker


@pytest.fixture(scope="module")
def sighted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save("qwen3_vl", tmp_path_factory.mktemp("sighted"))


@pytest.mark.parametrize("architecture", ["qwen2", "llama", "qwen3", "qwen3_moe", "qwen3_vl"])
def test_a_batch_answers_as_the_library_does_one_by_one(architecture: str, tmp_path: Path) -> None:
    speaker = loud(speaker_of(save(architecture, tmp_path)))
    tokenizer, expected = speaker.tokenizer, []
    for question in QUESTIONS:
        turns = [{"role": "user", "content": question}]
        ids = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        reply = speaker.model.generate(**ids, max_new_tokens=8, do_sample=False, pad_token_id=0)
        expected.append(tokenizer.decode(reply[0, ids["input_ids"].shape[1] :], skip_special_tokens=True).strip())
    assert answer(speaker, QUESTIONS, max_new_tokens=8) == expected
    assert len(set(expected)) == 3


def test_the_result_of_a_vision_run_answers_by_the_template_that_it_was_trained_with(
    sighted: Path, tmp_path: Path
) -> None:
    """The processor is that of the base, whose own template is another one."""
    spec = RunSpec.model_validate({"model": {"name": str(sighted)}, "data": {"train": "t"}, "lora": {"dropout": 0}})
    source = locate(spec.model)
    base = load_model(source, spec.model, load_config(source, spec.model), torch.float32)
    tokenizer = load_tokenizer(source, spec.model, None)
    before = tokenizer.chat_template
    tokenizer.chat_template = trained = before + " "
    final = tmp_path / "run/final"
    final.mkdir(parents=True)
    adapted = to_train(base, spec, base_name=source.name)
    export_final(adapted, tokenizer, final, dtype=torch.float32, stop_ids=[2])
    (tmp_path / "run/run.yaml").write_text(to_yaml(spec))
    shutil.copytree(final, tmp_path / "copied")

    def template(target: Path, **which: Any) -> str:
        speaker = load_speaker(find_result(str(target), "writes", **which), torch.float32, CPU)
        assert speaker.vision is not None
        return str(speaker.tokenizer.chat_template)

    assert template(tmp_path / "run") == template(tmp_path / "copied") == trained
    assert template(tmp_path / "run", base=True) == before


@pytest.mark.parametrize("adapted", [False, True])
def test_the_likeliest_token_is_taken_whatever_the_model_comes_with(adapted: bool, tmp_path: Path) -> None:
    """As Qwen2.5's generation_config.json, which has a penalty for what was said before."""
    speaker = loud(speaker_of(save("qwen2", tmp_path)))
    own = speaker.model.generation_config
    own.repetition_penalty, own.no_repeat_ngram_size, own.top_k, own.do_sample = 30.0, 1, 5, True
    if adapted:
        config = LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
        speaker = replace(speaker, model=get_peft_model(speaker.model, config).eval())
    ids = prompt_ids(speaker, asked_of("Hi"))
    prompt = len(ids)
    for _ in range(8):
        with torch.no_grad():
            ids.append(int(speaker.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    expected = speaker.tokenizer.decode(ids[prompt:], skip_special_tokens=True).strip()
    assert answer(speaker, ["Hi"], max_new_tokens=8) == [expected]
    told: list[str] = []
    assert reply(speaker, [Turn("user", "Hi")], Sampling(max_new_tokens=8), told.append) == expected
    assert (own.repetition_penalty, speaker.model.generation_config.no_repeat_ngram_size) == (30.0, 1), "as it was"


SMALL = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 64}
DECODERS: dict[str, dict[str, Any]] = {
    "recurrent_gemma": {**SMALL, "num_key_value_heads": 1, "lru_width": 32, "attention_window_size": 64},
    "rwkv": {"hidden_size": 32, "num_hidden_layers": 2, "attention_hidden_size": 32, "context_length": 64},
    "mamba": {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
    "xlstm": {"hidden_size": 128, "num_blocks": 2, "num_heads": 2, "chunk_size": 16},
    "bart": {"d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 2, "decoder_ffn_dim": 64},
}


@pytest.mark.parametrize("model_type", DECODERS)
def test_a_batch_answers_as_one_by_one_whatever_holds_what_was_read(model_type: str) -> None:
    """States, and places counted from the first column, know nothing of padding."""
    tokenizer = tiny_tokenizer(chat_template=None)
    config = AutoConfig.for_model(model_type, **DECODERS[model_type], vocab_size=len(tokenizer), pad_token_id=0)
    config.bos_token_id = config.eos_token_id = 1
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    speaker = Speaker(model, tokenizer, None)
    alone = [answer(speaker, [question], max_new_tokens=6) for question in QUESTIONS]
    assert [[text] for text in answer(speaker, QUESTIONS, max_new_tokens=6)] == alone


LONGROPE: dict[str, Any] = {
    **{**SMALL, "hidden_size": 32, "num_key_value_heads": 2, "max_position_embeddings": 512, "pad_token_id": 0},
    "original_max_position_embeddings": 24,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "original_max_position_embeddings": 24,
        "short_factor": [1.0] * 8,
        "long_factor": [4.0, 6.0, *[8.0] * 6],
    },
}
"""As Phi-3: other frequencies for passes with a row of more than 24 tokens."""


DYNAMIC = LONGROPE | {
    "max_position_embeddings": 24,
    "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 8.0},
}
"""Other frequencies for each length beyond 24 tokens, which stay until a shorter row comes."""


@pytest.mark.parametrize("longest", [4, 12])
@pytest.mark.parametrize(("model_type", "sizes"), [("phi3", LONGROPE), ("llama", DYNAMIC)])
def test_an_answer_knows_nothing_of_how_long_those_beside_it_are(
    model_type: str, sizes: dict[str, Any], longest: int
) -> None:
    """Nor of those before it. On either side of the border, and where an answer crosses it."""
    tokenizer = tiny_tokenizer(chat_template=None)
    config = AutoConfig.for_model(model_type, **sizes, vocab_size=len(tokenizer) + 1)
    config.bos_token_id = config.eos_token_id = 1
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    speaker, never = Speaker(model, tokenizer, None), [len(tokenizer)]
    prompts = [asked_of("Hello " * n) for n in (1, 2, 4, 5, 6, 7, 8, 11, 30, 50)]
    lengths = [len(prompt_ids(speaker, prompt)) for prompt in prompts]
    assert min(lengths) + longest < 24 < max(lengths) and any(24 - longest < length <= 24 for length in lengths)
    alone = [reply_to(replace(speaker, model=copy.deepcopy(model)), prompt, never, longest) for prompt in prompts]
    assert replies_together(speaker, prompts, never, longest) == alone


LEARNED: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 24},
    "opt": {**SMALL, "ffn_dim": 64, "word_embed_proj_dim": 32, "max_position_embeddings": 24},
}


@pytest.mark.parametrize("adapted", [False, True])
@pytest.mark.parametrize("model_type", LEARNED)
def test_an_answer_ends_where_learned_positions_do(model_type: str, adapted: bool) -> None:
    """Cut off, not with an error; those beside it in a batch are as long as they may be."""
    tokenizer = tiny_tokenizer(chat_template=None)
    config = AutoConfig.for_model(model_type, **LEARNED[model_type], vocab_size=len(tokenizer) + 1)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    if adapted:
        table = ["wpe" if model_type == "gpt2" else "embed_positions"]
        lora = LoraConfig(r=2, target_modules=["q_proj", "c_attn"], modules_to_save=table, task_type="CAUSAL_LM")
        model = get_peft_model(model, lora)
    speaker = Speaker(model, tokenizer, None)
    ids = [tokenizer(text)["input_ids"] for text in ("Hi", "Hello " * 4)]
    assert len(ids[0]) < len(ids[1]) < 24
    never = [len(tokenizer)]  # which this model does not write
    long = [asked_of(text) for text in ("Hi", "Hello " * 4)]
    for longest in (3, 100):
        found = replies_together(speaker, long, never, longest)
        assert [reply.tokens for reply in found] == [min(longest, 24 - len(row)) for row in ids]
        assert not any(reply.ended for reply in found)
        assert found == [reply_to(speaker, prompt, never, longest) for prompt in long]
    assert reply(speaker, [Turn("user", "Hello")], Sampling(max_new_tokens=100), lambda _piece: None) is not None
    beyond = "Hello " * 40
    with pytest.raises(DataError, match="prompt 2: it has .* tokens, and the model takes 24"):
        answer(speaker, ["Hi", beyond], max_new_tokens=4)
    with pytest.raises(DataError, match="the model takes 24"):
        reply(speaker, [Turn("user", beyond)], Sampling(max_new_tokens=4), lambda _piece: None)


def test_what_the_chat_template_refuses_is_said(tmp_path: Path) -> None:
    """As Gemma's and Mistral's do a system prompt."""
    refused = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    speaker = speaker_of(tiny_model(tmp_path, tokenizer=tiny_tokenizer(chat_template=refused + CHATML)))
    chat = Chat([Voice("", speaker)], Sampling(max_new_tokens=2), "Be brief.")
    with pytest.raises(DataError, match="the chat template says: System role not supported"):
        chat.ask("Hi")
    rows = [Prompt((Message("system", "Be brief."), HELLO), where=f"rows.jsonl:{n}") for n in (1, 2)]
    with pytest.raises(DataError) as caught:
        require_askable([Voice("", speaker)], [rows[0], asked_of("Hi"), rows[1]], 2)
    assert [problem.where for problem in caught.value.problems] == ["rows.jsonl:1", "rows.jsonl:2"]
    broken = replace(speaker, tokenizer=tiny_tokenizer(chat_template="{% if %}"))
    with pytest.raises(ConfigError, match="the chat template is not valid Jinja"):
        answer(broken, ["Hi"])


def test_questions_that_memory_runs_out_of_together_are_asked_in_smaller_batches(tmp_path: Path) -> None:
    speaker = loud(speaker_of(tiny_model(tmp_path)))
    questions = [question * (1 + n % 3) for n in range(8) for question in QUESTIONS]
    whole = answer(speaker, questions, max_new_tokens=4)
    with out_of_memory_beyond(speaker.model, rows=5) as passes:
        assert answer(speaker, questions, max_new_tokens=4) == whole
    assert 1 < max(passes) <= 5
    with out_of_memory_beyond(speaker.model, rows=0), pytest.raises(RankzeroError, match="out of memory") as ended:
        answer(speaker, ["Hi", "What is it?"], max_new_tokens=4)
    assert ended.value.problems[0].where == "prompt 2" and "--max-new-tokens" in ended.value.problems[0].hint


def test_what_is_no_number_is_no_answer(tmp_path: Path) -> None:
    """The first token would be the likeliest. What was written before it broke is none either."""
    speaker = loud(speaker_of(tiny_model(tmp_path)))
    ids = speaker.tokenizer(" dog", add_special_tokens=False)["input_ids"]
    speaker.model.config.tie_word_embeddings = False
    speaker.model.model.embed_tokens.weight = torch.nn.Parameter(speaker.model.lm_head.weight.detach().clone())
    speaker.model.model.embed_tokens.weight.data[ids] = torch.nan
    assert len(answer(speaker, ["Hello"], max_new_tokens=1)) == 1
    with pytest.raises(NonFiniteError, match="prompt 2: its answer is NaN") as refused:
        answer(speaker, ["Hello", "a dog", "Hello"], max_new_tokens=1)
    assert [problem.where for problem in refused.value.problems] == ["prompt 2"]
    with pytest.raises(NonFiniteError, match="rows.jsonl:2: its answer is NaN"):
        ask_all([Voice("", speaker)], [asked_of("a dog", "rows.jsonl:2")], max_new_tokens=1)
    for sampling in (Sampling(temperature=0), Sampling(temperature=0.7, seed=1)):
        with pytest.raises(NonFiniteError, match="the message: its answer is NaN"):
            reply(speaker, [Turn("user", "a dog")], sampling, lambda _text: None)


@pytest.mark.parametrize("rope", ["default", "linear", "dynamic"])
def test_a_question_beyond_a_models_context_is_no_question_to_measure_by(
    rope: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As training refuses such rows and prompts, but where the config stretches positions. Who asks is told."""
    monkeypatch.setattr(logging.getLogger("rankzero"), "propagate", True)
    speaker = speaker_of(tiny_model(tmp_path, context=40))
    speaker.model.config.rope_parameters = {"rope_type": rope, "rope_theta": 1e4, "factor": 2.0}
    prompts = [asked_of("Hello " * count, f"rows.jsonl:{n}") for n, count in enumerate((1, 20, 2, 30), 1)]
    beyond = rope == "default"
    with pytest.raises(DataError) if beyond else nullcontext() as refused:
        require_askable([Voice("", speaker)], prompts, 2)
    if refused is not None:
        assert [problem.where for problem in refused.value.problems] == ["rows.jsonl:2", "rows.jsonl:4"]
        assert "the model's context is 40" in refused.value.problems[0].what
    assert not caplog.text
    answer(speaker, ["Hello", "Hello " * 30], max_new_tokens=2)
    assert ("prompt 2: it has" in caplog.text and "the model's context is 40" in caplog.text) is beyond
    caplog.clear()
    reply(speaker, [Turn("user", "Hello " * 30)], Sampling(max_new_tokens=2), lambda _piece: None)
    assert ("what was said: it has" in caplog.text) is beyond


def test_a_prompt_without_tokens_is_named(tmp_path: Path) -> None:
    """Of a model without a chat template, whose tokenizer puts no mark before a text."""
    speaker = speaker_of(tiny_gpt2(tmp_path))
    with pytest.raises(DataError, match="prompt 2: it has no tokens"):
        answer(speaker, ["Hi", ""], max_new_tokens=3)
    with pytest.raises(DataError, match="it has no tokens"):
        reply(speaker, [Turn("user", "")], Sampling(max_new_tokens=3), lambda _piece: None)


HELLO, PING, AGAIN = Message("user", "Hello"), Message("assistant", "Ping"), Message("user", "again")
CHATS = {
    "one turn": (HELLO, PING),
    "two turns": (HELLO, PING, AGAIN, Message("assistant", "Pong seven")),
    "reasoning": (HELLO, replace(PING, reasoning="so"), AGAIN, replace(PING, reasoning="because")),
    "reasoning in the text": (HELLO, Message("assistant", "<think>\nso\n</think>\n\nPing"), AGAIN, PING),
}


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_asked_is_what_stands_before_an_answer_in_training(family: str, chat: str) -> None:
    """Turns with reasoning are written as the template writes them, and not into what was said."""
    tokenizer, messages = family_tokenizer(family), CHATS[chat]
    parts, rules = take_apart(tokenizer), TokenRules(train_on="last_turn")
    row = Renderer(parts, rules).render(Conversation(messages, templated=True, line=1))
    assert isinstance(row, Rendered)
    (tokens,) = Encoder(parts, rules).encode([row])
    before = tokens.ids[: tokens.ranges[0][0]]
    asked = prompt_ids(Speaker(None, tokenizer, None), Prompt(messages[:-1], templated=True))
    wanted, found = tokenizer.decode(before) + row.unopened, tokenizer.decode(asked)
    if family == "deepseek_r1" and chat == "reasoning":  # what it takes reasoning out of keeps the lines behind that
        wanted, found = ("".join(text.split()) for text in (wanted, found))
    assert found == wanted
    assert row.unopened or family == "deepseek_r1" or asked == before


@pytest.mark.parametrize("family", ["hermes", "mistral_nemo", "kimi_k2"])
def test_calls_are_asked_about_with_the_ids_that_they_were_trained_with(family: str) -> None:
    tokenizer = held_out_tokenizer(family)
    _, row = convert(DIALOGUES["calls alone"].row(), 1)
    assert isinstance(row, Conversation)
    rendered = Renderer(take_apart(tokenizer), TokenRules(train_on="last_turn")).render(row)
    assert isinstance(rendered, Rendered)
    ids = prompt_ids(Speaker(None, tokenizer, None), Prompt(row.messages[:-1], templated=True))
    assert tokenizer.decode(ids) == rendered.text[: rendered.spans[0][0]]


def test_calls_are_asked_about_in_the_template_for_tools_and_in_its_form() -> None:
    """Which is another one than without, and takes arguments as JSON in a string."""
    seen = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    calls = "{% for c in m.tool_calls or [] %}{{ c.function.name + ' ' + ARGUMENTS }}{% endfor %}"
    end = "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    default = seen + calls.replace("ARGUMENTS", "c.function.arguments | tojson") + end
    of_tools = "{{ tools | tojson }}" + seen + calls.replace("ARGUMENTS", "c.function.arguments") + end
    tokenizer = tiny_tokenizer(chat_template={"default": default, "tool_use": of_tools})  # type: ignore[arg-type]
    _, plain = convert(DIALOGUES["calls alone"].row(), 1)
    assert isinstance(plain, Conversation)
    for tools in ((), ({"type": "function", "function": {"name": "look", "parameters": {}}},)):
        row = replace(plain, tools=tools)
        rendered = Renderer(take_apart(tokenizer), TokenRules(train_on="last_turn")).render(row)
        assert isinstance(rendered, Rendered)
        prompt = Prompt(row.messages[:-1], templated=True, tools=row.tools)
        ids = prompt_ids(Speaker(None, tokenizer, None), prompt)
        assert tokenizer.decode(ids) == rendered.text[: rendered.spans[0][0]]


@pytest.mark.parametrize("around", ["<s> $A", "<s> $A </s>", "$A </s>", "$A"])
@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "What is", "completion": " the capital"},
        {"prompt": "<s>What is", "completion": " the capital"},
        {"segments": [{"text": "<s>What is", "label": False}, {"text": " the capital</s>", "label": True}]},
        {"segments": [{"text": "What is", "label": False}, {"text": " the capital", "label": True}]},
    ],
)
def test_raw_text_is_asked_as_it_was_trained(row: dict[str, Any], around: str, tmp_path: Path) -> None:
    """Up to its answer: nothing behind the question, and one token before it where training had one."""
    tokenizer = tiny_tokenizer(specials=("<s>", "</s>"), bos="<s>", eos="</s>")
    ids = [(token, tokenizer.convert_tokens_to_ids(token)) for token in ("<s>", "</s>")]
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(single=around, special_tokens=ids)
    path = write_jsonl(tmp_path / "rows.jsonl", [row])
    (prompt,) = read_questions(SourceSpec(path=str(path)), seed=0)
    asked = prompt_ids(Speaker(None, tokenizer, None), prompt)
    parts, rules = take_apart(tokenizer), TokenRules()
    rendered = Renderer(parts, rules).render(convert(row, 1)[1])
    assert isinstance(rendered, Rendered)
    (trained,) = Encoder(parts, rules).encode([rendered])
    assert asked == trained.ids[: trained.ranges[0][0]]


def test_an_answer_with_its_end_in_its_text_is_compared_without() -> None:
    tokenizer = tiny_tokenizer(specials=("<s>", "</s>"), bos="<s>", eos="</s>")
    asked = (Message("prompt", "<s>What is"),)
    raw = Prompt(asked, templated=False, verbatim=True, reference="the capital</s>")
    assert References(Speaker(None, tokenizer, None)).comparable(raw).reference == "the capital"
    chat = Prompt((Message("user", "what ends a text?"),), templated=True, reference="</s>")
    assert References(Speaker(None, tokenizer, None)).comparable(chat) is chat


def test_a_prompt_with_calls_is_rendered_whatever_training_would_need_of_the_tokenizer() -> None:
    """Such as an end token, by which nothing is asked."""
    call = {"type": "function", "function": {"name": "look", "arguments": {"at": 1}}}
    turns = ({"role": "user", "content": "Where?"}, {"role": "assistant", "content": "", "tool_calls": [call]})
    row = convert(
        {"messages": [*turns, {"role": "tool", "content": "There."}, {"role": "assistant", "content": "x"}]}, 1
    )
    prompt, texts = Prompt(row[1].messages[:-1], templated=True), []
    for end in ("<|im_end|>", None):
        tokenizer = copy.deepcopy(family_tokenizer("qwen3"))
        tokenizer.eos_token = end
        texts.append(tokenizer.decode(prompt_ids(Speaker(None, tokenizer, None), prompt)))
    assert texts[0] == texts[1] and '{"name": "look", "arguments": {"at": 1}}' in texts[0]


def test_a_text_that_nobody_put_a_form_on_is_asked_without_an_end() -> None:
    """Where there is no chat template, and the tokenizer puts its end token behind whatever it is given."""
    tokenizer = tiny_tokenizer(chat_template=None, specials=("<s>", "</s>"), bos="<s>", eos="</s>")
    ids = [(token, tokenizer.convert_tokens_to_ids(token)) for token in ("<s>", "</s>")]
    post = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=ids)
    tokenizer.backend_tokenizer.post_processor = post
    tokenizer(["a", "b c"], padding=False, truncation=True, max_length=2)  # by whoever used it before
    assert tokenizer.decode(prompt_ids(Speaker(None, tokenizer, None), asked_of("Hello"))) == "<s>Hello"


@pytest.mark.parametrize("chat", ["one turn", "reasoning"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_reply_as_it_was_trained_is_read_as_the_rows_answer(family: str, chat: str) -> None:
    """Whatever the model writes around it: tags, channels, its end."""
    tokenizer, messages = family_tokenizer(family), CHATS[chat]
    parts, rules = take_apart(tokenizer), TokenRules(train_on="last_turn")
    row = Renderer(parts, rules).render(Conversation(messages, templated=True, line=1))
    assert isinstance(row, Rendered)
    (tokens,) = Encoder(parts, rules).encode([row])
    written = [token for start, end in tokens.ranges for token in tokens.ids[start:end]]
    text = text_of(tokenizer, written)
    assert without_reasoning(text) == messages[-1].content
    assert messages[-1].reasoning in text
    asked = Prompt((Message("prompt", "?"),), templated=False, reference=tokenizer.decode(written))
    wanted = References(Speaker(None, tokenizer, None)).comparable(asked).reference
    assert wanted == messages[-1].content, "the same as text that nobody has rendered, with its marks and its end"


@pytest.mark.parametrize(
    ("opening", "is_open"),
    [("<think>\n", True), ("<think>", True), ("<think>\n\n</think>\n\n", False), ("Let me <think> of it: ", False)],
)
def test_what_is_cut_off_in_reasoning_that_the_prompt_has_opened_is_no_answer(
    opening: str, is_open: bool, tmp_path: Path
) -> None:
    """As DeepSeek-R1's template does. A model that ends by itself there has answered: it was taught to."""
    template = CHATML.replace("assistant\n", "assistant\n" + opening)
    assert template != CHATML
    speaker = speaker_of(tiny_model(tmp_path))
    speaker.tokenizer.chat_template = template
    prompt, every = asked_of("Hi"), list(range(len(speaker.tokenizer)))
    (never,) = replies_together(speaker, [prompt], [len(every)], 3)
    (at_once,) = replies_together(speaker, [prompt], every, 3)
    assert at_once.ended and not never.ended and not at_once.text.startswith("<think>")
    assert never.text.startswith("<think>\n") is is_open
    assert without_reasoning(never.text) == ("" if is_open else never.text)
    assert reply_to(speaker, prompt, [len(every)], 3) == never


@pytest.mark.parametrize(
    ("family", "opening"), [("gemma4", "<|channel>thought\n"), ("magistral", "[THINK]"), ("parts", "[THINK]")]
)
def test_what_is_cut_off_behind_a_mark_of_the_prompt_is_no_answer(family: str, opening: str) -> None:
    tokenizer = thinking_in_marks(family)
    prompt, ids = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("? " + opening, "two and three"))
    assert text_of(tokenizer, ids, prompt) == "<think>\ntwo and three"
    for before, begun in ((prompt, True), (ids, False)):
        streamer = _Told(tokenizer, lambda _piece: None)
        streamer.put(torch.tensor([before]))
        assert streamer.began_inside is begun, "what chat shows and what it keeps are the same"
    assert text_of(tokenizer, ids, prompt[:-1] if family != "gemma4" else ()) == "two and three"


def thinking_in_marks(family: str) -> Any:
    """Tokenizers whose special tokens part reasoning from answers."""
    if family == "gemma4":
        specials = ("<|turn>", "<turn|>", "<|channel>", "<channel|>")
        thought = "{% if m.reasoning %}{{ '<|channel>thought\n' + m.reasoning + '\n<channel|>' }}{% endif %}"
        turn = "<|turn>{{ m.role }}\n" + thought + "{{ m.content + '<turn|>\n' }}"
        opening = "{% if add_generation_prompt %}{{ '<|turn>assistant\n' }}{% endif %}"
        template = "{% for m in messages %}" + turn + "{% endfor %}" + opening
        return tiny_tokenizer(chat_template=template, specials=specials, eos="<turn|>")
    specials = ("[INST]", "[/INST]", "[THINK]", "[/THINK]", "</s>")
    thought = "{% if m.reasoning_content %}{{ '[THINK]' + m.reasoning_content + '[/THINK]' }}{% endif %}"
    if family == "parts":  # as Magistral's own
        one = "{{ '[THINK]' + p.thinking + '[/THINK]' if p.type == 'thinking' else p.text }}"
        thought = (
            "{% if m.content is not string %}{% for p in m.content %}" + one + "{% endfor %}{{ '</s>' }}{% else %}"
        )
    said = "{{ m.content + '</s>' }}" + ("{% endif %}" if family == "parts" else "")
    turn = "{% if m.role == 'user' %}{{ '[INST]' + m.content + '[/INST]' }}{% else %}" + thought + said + "{% endif %}"
    return tiny_tokenizer(
        chat_template="{% for m in messages %}" + turn + "{% endfor %}", specials=specials, eos="</s>"
    )


@pytest.mark.parametrize(
    ("family", "opens", "closes", "end"),
    [
        ("gemma4", "<|channel>thought\n", "\n<channel|>", "<turn|>"),
        ("magistral", "[THINK]", "[/THINK]", "</s>"),
        ("parts", "[THINK]", "[/THINK]", "</s>"),
    ],
)
def test_reasoning_between_special_tokens_is_no_answer(family: str, opens: str, closes: str, end: str) -> None:
    tokenizer = thinking_in_marks(family)
    for written, text, said in (
        (f"{opens}two and three{closes}5{end}", "<think>\ntwo and three\n</think>\n\n5", "5"),
        (f"{opens}two and{closes}{opens}three{closes}5{end}", "<think>\ntwo and\nthree\n</think>\n\n5", "5"),
        (f"two and three{closes}5{end}", "<think>\ntwo and three\n</think>\n\n5", "5"),  # the prompt has opened it
        (f"{opens}two and", "<think>\ntwo and", ""),
        (f"{opens}{closes}5{end}", "5", "5"),
        (f"5{end}", "5", "5"),
        (
            f"{opens}muse{closes}thoughtful people{end}",
            "<think>\nmuse\n</think>\n\nthoughtful people",
            "thoughtful people",
        ),
        (f"{opens}muse{closes}thought{end}", "<think>\nmuse\n</think>\n\nthought", "thought"),
    ):
        ids = tokenizer(written, add_special_tokens=False)["input_ids"]
        assert (text_of(tokenizer, ids), without_reasoning(text_of(tokenizer, ids))) == (text, said)
        pieces = list[str]()
        streamer = _Told(tokenizer, pieces.append)
        head = opens if closes in written and opens not in written else ""
        streamer.put(tokenizer(f"question{head}", return_tensors="pt", add_special_tokens=False)["input_ids"])
        for token in ids:
            streamer.put(torch.tensor([token]))
        streamer.end()
        assert "".join(pieces) == text, "as it is told while it is written"
        raw = Prompt((Message("prompt", "?"),), templated=False, reference=written)
        assert References(Speaker(None, tokenizer, None)).comparable(raw).reference == (said or None)


@pytest.mark.parametrize("chat", ["one turn", "reasoning"])
@pytest.mark.parametrize("family", ["gemma4", "magistral"])
def test_reasoning_as_it_was_trained_between_special_tokens_is_read_as_such(family: str, chat: str) -> None:
    tokenizer, parts, rules = thinking_in_marks(family), take_apart(thinking_in_marks(family)), TokenRules()
    row = Renderer(parts, replace(rules, train_on="last_turn")).render(Conversation(CHATS[chat], True, 1))
    assert isinstance(row, Rendered)
    (tokens,) = Encoder(parts, rules).encode([row])
    written = [token for start, end in tokens.ranges for token in tokens.ids[start:end]]
    assert without_reasoning(text_of(tokenizer, written)) == CHATS[chat][-1].content
    assert CHATS[chat][-1].reasoning in text_of(tokenizer, written)


def test_only_raw_text_has_special_tokens_that_are_no_words_of_its_answer() -> None:
    speaker = Speaker(None, tiny_tokenizer(eos="</s>", bos="<s>", specials=("</s", "<|im_end|>")), None)
    messages = (Message("prompt", "<s>Hello "),)
    for reference, wanted in (
        ("World</s>", "World"),
        ("a < b</s><|im_end|>", "a < b"),
        ("World", "World"),
        ("</s>", None),
    ):
        assert (
            References(speaker).comparable(Prompt(messages, templated=False, reference=reference)).reference == wanted
        )
        for templated in (True, None):
            prompt = Prompt(messages, templated=templated, reference=reference)
            assert References(speaker).comparable(prompt) == prompt


@pytest.mark.parametrize("chat", ["one turn", "reasoning"])
@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_told_while_it_is_written_is_the_answer(family: str, chat: str) -> None:
    """Names of channels are none of it. Nothing waits for the end: each word is told before the next two are there."""
    tokenizer, messages = family_tokenizer(family), CHATS[chat]
    parts, rules = take_apart(tokenizer), TokenRules(train_on="last_turn")
    row = Renderer(parts, rules).render(Conversation(messages, templated=True, line=1))
    assert isinstance(row, Rendered)
    (tokens,) = Encoder(parts, rules).encode([row])
    written = [token for start, end in tokens.ranges for token in tokens.ids[start:end]]
    pieces: list[str] = []
    behind = []
    streamer = _Told(tokenizer, pieces.append)
    streamer.put(torch.tensor([[1, 2, 3]]))
    for count, token in enumerate(written, 1):
        streamer.put(torch.tensor([token]))
        behind.append(len(text_of(tokenizer, written[:count]).split()) - len("".join(pieces).split()))
    streamer.end()
    assert "".join(pieces).strip() == text_of(tokenizer, written)
    assert max(behind) <= 2


def test_lines_keep_their_indentation_while_they_are_written() -> None:
    """Decoders as Llama-2's, Mistral's and Phi-3's drop a blank before the first token that they are given."""
    words = ["def", "▁f", "():", "▁▁▁", "▁x", "▁return", "▁-", "▁item", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocab = {word: number for number, word in enumerate(["<unk>", "<s>", "</s>", *words])}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    replaced = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(replaced)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", bos_token="<s>")
    line, smile = "<0x0A>", [f"<0x{byte:02X}>" for byte in "\N{GRINNING FACE}".encode()]
    said = ["▁f", "():", line, "▁▁▁", "▁x", line, "▁▁▁", "▁return", *smile, line, "▁-", "▁item", smile[0], "</s>"]
    pieces, ids = list[str](), [vocab[word] for word in said]
    streamer = _Told(tokenizer, pieces.append)
    for value in ([vocab["<s>"], vocab["def"]], *([number] for number in ids)):
        streamer.put(torch.tensor(value))
    streamer.end()
    assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=True)
    assert "".join(pieces) == "f():\n    x\n    return\N{GRINNING FACE}\n - item\N{REPLACEMENT CHARACTER}"


def test_several_thoughts_and_a_message_that_is_neither_are_told_too() -> None:
    tokenizer, pieces = family_tokenizer("gpt_oss"), list[str]()
    text = (
        "<|channel|>analysis<|message|>One thought.<|end|><|start|>assistant"
        "<|channel|>analysis<|message|>Another.<|end|><|start|>assistant"
        "<|channel|>final<|message|>Pong it is.<|return|>"
    )
    call = "<|channel|>commentary to=functions.now<|message|>{}"
    for written, wanted in ((text, ""), (call, "commentary to=functions.now{}")):
        pieces.clear()
        ids = tokenizer(written, add_special_tokens=False)["input_ids"]
        streamer = _Told(tokenizer, pieces.append)
        streamer.put(torch.tensor([[1]]))
        for token in ids:
            streamer.put(torch.tensor([token]))
        streamer.end()
        assert "".join(pieces) == (wanted or text_of(tokenizer, ids))


def test_reasoning_that_never_ended_is_no_answer() -> None:
    tokenizer = family_tokenizer("gpt_oss")
    ids = tokenizer("<|channel|>analysis<|message|>Pong, or", add_special_tokens=False)["input_ids"]
    assert "Pong, or" in text_of(tokenizer, ids) and without_reasoning(text_of(tokenizer, ids)) == ""


def test_the_chat_template_gets_what_the_spec_gives_it() -> None:
    tokenizer = family_tokenizer("qwen3")
    asked = asked_of("Hi")
    plain, told = (
        prompt_ids(Speaker(None, tokenizer, None, kwargs), asked) for kwargs in ({}, {"enable_thinking": False})
    )
    assert tokenizer.decode(told) == tokenizer.decode(plain) + "<think>\n\n</think>\n\n"


@pytest.mark.parametrize("called", [False, True])
def test_a_template_is_compiled_once_for_all_prompts(called: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that writes a date, or is shown calls, is rendered by our own code."""
    compiled, environment = list[int](), chat_templates._environment

    def counted() -> Any:
        compiled.append(1)
        return environment()

    monkeypatch.setattr(chat_templates, "_environment", counted)
    date = f"{{# {called} #}}{{{{ strftime_now('%d %b %Y') }}}}"
    speaker = Speaker(None, tiny_tokenizer(chat_template=date + CHATML), None, dated_as_trained=not called)
    call = Message("assistant", "Wait", tool_calls=({"type": "function", "function": {"name": "f", "arguments": {}}},))
    for text in ("Hi", "Hello", "World"):
        turns = (Message("user", text), *([call, Message("user", "And?")] if called else []))
        assert text in speaker.tokenizer.decode(prompt_ids(speaker, Prompt(turns)))
    assert len(compiled) == 1


def test_what_is_measured_is_asked_on_the_day_of_training(tmp_path: Path) -> None:
    """As Llama 3's and SmolLM3's templates write one: the same question is the same tokens tomorrow. Who asks for an
    answer is told of today."""
    template = "{{ 'It is ' + strftime_now('%d %b %Y') + name + '\n' }}" + CHATML
    row = Conversation((HELLO, PING), templated=True, line=1)
    directory = tiny_model(tmp_path / "model", tokenizer=tiny_tokenizer(chat_template=template))
    spec = {"model": {"name": str(directory)}, "data": {"chat_template_kwargs": {"name": ", Ada"}}, "lora": {}}
    spec["data"]["train"] = str(write_jsonl(tmp_path / "rows.jsonl", [{"prompt": "Hello", "completion": "Ping"}]))
    spec["eval"] = {"prompts": ["Hello"]}
    result = as_it_was(RunSpec.model_validate(spec))
    rules = TokenRules(template_kwargs=result.chat_template_kwargs)
    trained = Renderer(take_apart(tiny_tokenizer(chat_template=template)), rules).render(row)
    assert isinstance(trained, Rendered) and trained.text.startswith("It is 26 Jul 2024, Ada\n")
    asked = trained.text[: trained.spans[0][0]]
    (measured,) = open_voices(result, measures=True)
    sampled = read_inputs(RunSpec.model_validate(spec), World(), Ledger()).speaker
    for speaker in (measured.speaker, sampled):
        assert speaker.tokenizer.decode(prompt_ids(speaker, asked_of("Hello"))) == asked
    (talks,) = open_voices(result)
    today = talks.speaker.tokenizer.decode(prompt_ids(talks.speaker, asked_of("Hello")))
    assert today.endswith(asked.partition("Ada")[2]) and today != asked


def test_images_are_seen_where_they_stand(sighted: Path, tmp_path: Path) -> None:
    from transformers import AutoImageProcessor

    speaker = loud(speaker_of(sighted))
    paths = [str(draw(tmp_path / f"{colour}.png", colour, size=(64, 96))) for colour in ("red", "blue")]
    (before,) = answer(speaker, ["Which is it?"], images=paths, max_new_tokens=8)
    (named,) = answer(speaker, ["<image><image>Which is it?"], images=paths, max_new_tokens=8)
    (apart,) = answer(speaker, ["<image>Which is it? <image>"], images=paths, max_new_tokens=8)
    assert before == named != apart

    from PIL import Image

    made = AutoImageProcessor.from_pretrained(sighted)([Image.open(path) for path in paths], return_tensors="pt")
    pads = ["<|image_pad|>" * int(grid.prod() // 4) for grid in made["image_grid_thw"]]
    seen = "".join(f"<|vision_start|>{pad}<|vision_end|>" for pad in pads)
    text = f"<|im_start|>user\n{seen}Which is it?<|im_end|>\n<|im_start|>assistant\n"
    ids = speaker.tokenizer(text, return_tensors="pt")
    marks = (ids["input_ids"] == speaker.model.config.image_token_id).long()
    reply = speaker.model.generate(**ids, **made, mm_token_type_ids=marks, max_new_tokens=8, do_sample=False)
    written = speaker.tokenizer.decode(reply[0, ids["input_ids"].shape[1] :], skip_special_tokens=True)
    assert before == written.strip()


def test_other_pixels_are_another_prompt(sighted: Path, tmp_path: Path) -> None:
    """What the model computes for the first token, not only which token wins."""
    speaker = speaker_of(sighted)
    seen: list[torch.Tensor] = []
    speaker.model.get_output_embeddings().register_forward_hook(lambda _m, _i, out: seen.append(out[0, -1]))
    for colour in ("red", "green"):
        answer(speaker, ["Which?"], images=[str(draw(tmp_path / f"{colour}.png", colour))], max_new_tokens=1)
    assert not torch.allclose(seen[0], seen[1], atol=1e-6)


def test_a_file_that_the_user_names_may_be_a_link_and_have_any_name(sighted: Path, tmp_path: Path) -> None:
    picture = draw(tmp_path / "red.png", "red")
    (tmp_path / "shown").mkdir()
    names = [tmp_path / "shown" / name for name in ("link.png", "data:x.png", "a\\b.png", "a:\tb.png")]
    names[0].symlink_to(picture)
    for name in names[1:]:
        name.write_bytes(picture.read_bytes())
    speaker = speaker_of(sighted)
    (expected,) = answer(speaker, ["Which?"], images=[str(picture)], max_new_tokens=3)
    assert [answer(speaker, ["Which?"], images=[str(name)], max_new_tokens=3) for name in names] == [[expected]] * 4
    os.mkfifo(tmp_path / "pipe.png")
    for name, words in (("pipe.png", "not a regular file"), ("none.png", "no such image")):
        with pytest.raises(DataError, match=words) as caught:
            answer(speaker, ["Which?"], images=[str(tmp_path / name)])
        assert caught.value.problems[0].where == str(tmp_path / name)


def test_faults_with_images(sighted: Path, tmp_path: Path) -> None:
    picture = str(draw(tmp_path / "red.png", "red"))
    with pytest.raises(UsageError, match=r"2 places for images and 1 image\n  hint: give one --image"):
        answer(speaker_of(sighted), ["<image> or <image>?"], images=[picture])
    with pytest.raises(DataError, match="no such image"):
        answer(speaker_of(sighted), ["Which?"], images=[str(tmp_path / "none.png")])
    blind = speaker_of(save("qwen3", tmp_path / "blind"))
    with pytest.raises(ConfigError, match="sees no images"):
        answer(blind, ["Which?"], images=[picture])


@pytest.mark.parametrize("token", ["<|image_pad|>", "<|video_pad|>"])
@pytest.mark.parametrize("seen", [False, True])
def test_a_models_own_image_tokens_in_what_is_asked_are_named(
    token: str, seen: bool, sighted: Path, tmp_path: Path
) -> None:
    pictures = [str(draw(tmp_path / "1.png", "red"))] if seen else []
    with pytest.raises(DataError, match="the model's own token .* which stands for what is no text") as caught:
        answer(speaker_of(sighted), [f"What does {token} mean?"], images=pictures)
    assert token in str(caught.value) and caught.value.problems[0].where


def test_a_model_without_a_template_goes_on_writing(tmp_path: Path) -> None:
    speaker = speaker_of(tiny_gpt2(tmp_path))
    assert len(answer(speaker, QUESTIONS, max_new_tokens=4)) == 3


def test_four_bits(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    speaker = speaker_of(save("qwen3", tmp_path), model={"quantization": "nf4"}, lora={})
    assert type(speaker.model.model.layers[0].self_attn.q_proj).__name__ == "Linear4bit"
    assert len(answer(speaker, QUESTIONS, max_new_tokens=4)) == 3


def test_what_puts_texts_into_classes_is_told_the_other_command(tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    model = save("qwen3", tmp_path)
    AutoModelForSequenceClassification.from_pretrained(model).save_pretrained(model)
    with pytest.raises(ConfigError, match="rankzero predict"):
        speaker_of(model)
    encoder = save("distilbert", tmp_path / "encoder")
    with pytest.raises(ConfigError, match="no model that writes text"):
        speaker_of(encoder)


def longer_than_the_table(root: Path) -> Path:
    """A model whose tokenizer has a token that only larger ones of its family have a row for, as Gemma 3 1B."""
    tokenizer = tiny_tokenizer()
    directory = tiny_model(root, tokenizer=tokenizer)
    tokenizer.add_tokens(["<seen>"], special_tokens=True)
    tokenizer.save_pretrained(directory)
    return directory


def test_a_token_without_an_embedding_is_named(tmp_path: Path) -> None:
    speaker = load_speaker(find_result(str(longer_than_the_table(tmp_path)), "writes"), torch.float32, CPU)
    assert len(answer(speaker, ["Hi", "Hello"], max_new_tokens=2)) == 2, "others are asked all the same"
    with pytest.raises(DataError, match="no embedding for token") as caught:
        answer(speaker, ["Hi", "a <seen>", "Hello", "<seen>"], max_new_tokens=2)
    assert [problem.where for problem in caught.value.problems] == ["prompt 2", "prompt 4"]
    assert "'<seen>'" in str(caught.value)
    with pytest.raises(DataError, match="what was said: the model has no embedding"):
        reply(speaker, [Turn("user", "a <seen>")], Sampling(max_new_tokens=2), lambda _: None)
    voices, prompts = [Voice("", speaker)], [asked_of("<seen>", "rows.jsonl:3")]
    with pytest.raises(DataError, match=r"rows.jsonl:3: the model has no embedding"):
        require_askable(voices, prompts, 2)


def test_the_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    directory = tiny_model(tmp_path, tokenizer=tiny_tokenizer(vocab_size=300))
    tiny_tokenizer().save_pretrained(directory)
    with pytest.raises(ConfigError, match="the tokenizer has ids up to 383, the model's embedding only 300 rows"):
        load_speaker(find_result(str(directory), "writes"), torch.float32, CPU)
