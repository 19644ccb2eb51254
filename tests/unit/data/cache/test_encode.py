"""Token ids and trained ranges: raw rows, boundaries, end tokens, cutting."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, processors
from transformers import PreTrainedTokenizerFast

from rankzero.data.cache.encode import Encoder, Row, Task, chunk_encoder
from rankzero.data.read.sources import Chunk
from rankzero.data.rows.conversation import Conversation
from rankzero.data.rows.formats import convert
from rankzero.data.tokens.chat import Rendered, Renderer, TokenRules
from rankzero.data.tokens.surroundings import BEGINS, ENDS, Surroundings, surroundings
from rankzero.data.tokens.tokenizer import take_apart
from rankzero.errors import ConfigError
from tests.support.families import FAMILIES, family_tokenizer
from tests.support.tiny import CHATML, CORPUS, tiny_tokenizer
from tests.unit.data.support import chat, user_assistant


def encode(row: dict[str, Any], tokenizer: Any, **rules: Any) -> Row:
    _, conversation = convert(row, 1)
    assert isinstance(conversation, Conversation), conversation
    parts, token_rules = take_apart(tokenizer), TokenRules(**rules)
    rendered = Renderer(parts, token_rules).render(conversation)
    assert isinstance(rendered, Rendered), rendered
    (encoded,) = Encoder(parts, token_rules).encode([rendered])
    return encoded


def changed_tokenizer(change: Callable[[dict[str, Any]], None]) -> Any:
    """The tiny ChatML tokenizer with its JSON changed."""
    backend = json.loads(tiny_tokenizer().backend_tokenizer.to_str())
    change(backend)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(backend)), eos_token="<|im_end|>"
    )
    tokenizer.chat_template = CHATML
    return tokenizer


def letters(alphabet: str, around: str, unknown: str | None) -> Any:
    """A tokenizer of single letters."""
    specials = {"<s>": 0, "</s>": 1}
    model = models.BPE(vocab={**specials, **{letter: 2 + i for i, letter in enumerate(alphabet)}}, merges=[])
    model.unk_token = unknown
    backend = Tokenizer(model)
    backend.add_special_tokens([AddedToken(token, special=True) for token in specials])
    backend.post_processor = processors.TemplateProcessing(single=around, special_tokens=list(specials.items()))
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token=unknown)


def trained(row: Row, tokenizer: Any) -> list[str]:
    return [tokenizer.decode(row.ids[start:end]) for start, end in row.ranges]


@pytest.mark.parametrize("name", [*FAMILIES])
def test_ids_are_those_of_transformers(name: str) -> None:
    tokenizer, row = family_tokenizer(name), user_assistant("Hello  World 🙂", "é\n seven", "x", "Lima")
    text = tokenizer.apply_chat_template(row["messages"], tokenize=False)
    without_end = FAMILIES[name].end == ""
    expected = tokenizer(text.rstrip() if without_end else text, add_special_tokens=False)["input_ids"]
    assert encode(row, tokenizer).ids == expected + [tokenizer.eos_token_id] * without_end


CONTENT = st.text(st.characters(codec="utf-8", exclude_characters="\ufdd0\ufdd1\ufdd2\ufdd3<"), min_size=1, max_size=20)


@pytest.mark.parametrize("name", [*FAMILIES])
@given(turns=st.lists(st.tuples(CONTENT, CONTENT, st.booleans()), min_size=1, max_size=4), system=st.none() | CONTENT)
@example(turns=[("0", "0", True), ("0", "0\r", False)], system=None)  # space at the end of the last turn
@example(turns=[("q", "a ", True), ("q", "b\n", True)], system=None)
@example(turns=[("q", "\n\na", True)], system=None)
@settings(max_examples=40, deadline=None)
def test_trained_tokens_decode_to_the_wanted_turns(
    name: str, turns: list[tuple[str, str, bool]], system: str | None
) -> None:
    family, tokenizer = FAMILIES[name], family_tokenizer(name)
    turns = [(q, a if a.strip() else "a", train) for q, a, train in turns]
    row = chat(*(t for q, a, train in turns for t in (("user", q), ("assistant", a, train))))
    if system is not None and family.system:
        row["messages"].insert(0, {"role": "system", "content": system})
    expected = []
    for number, (_, answer, train) in enumerate(turns):
        last = number == len(turns) - 1
        content = answer.strip() if family.strips else answer
        end = "<|return|>" if name == "gpt_oss" and last else family.end
        if not end:  # nothing says where trailing space belongs
            content, end = content.rstrip(), "<|endoftext|>" if last else ""
        think = "<think>\n\n</think>\n\n" if name == "qwen3" and last else ""
        if think:  # which its template parts from the answer itself
            content = content.lstrip("\n")
        if train:
            expected.append(think + family.opening + content + end)
    encoded = encode(row, tokenizer)
    if not expected:
        assert encoded.dropped == "nothing_to_train"
    else:
        assert trained(encoded, tokenizer) == expected


def test_a_token_that_joins_head_and_content_is_not_trained() -> None:
    """The head's newline and the content's as one token: in use the model is given the head's alone."""

    def merge_newlines(backend: dict[str, Any]) -> None:
        backend["pre_tokenizer"]["use_regex"] = False
        backend["model"]["vocab"]["ĊĊ"] = len(backend["model"]["vocab"])
        backend["model"]["merges"].append(["Ċ", "Ċ"])

    tokenizer = changed_tokenizer(merge_newlines)
    assert "ĊĊ" in tokenizer.convert_ids_to_tokens(encode(user_assistant("q", "\nword"), tokenizer).ids)
    assert trained(encode(user_assistant("q", "\nword"), tokenizer), tokenizer) == ["word<|im_end|>"]


def test_an_end_token_that_swallows_the_space_behind_it_is_trained() -> None:

    def swallow(backend: dict[str, Any]) -> None:
        for token in backend["added_tokens"]:
            token["rstrip"] = True  # as Phi's

    tokenizer = changed_tokenizer(swallow)
    row = encode(user_assistant("q", "one", "r", "two"), tokenizer)
    assert trained(row, tokenizer) == ["one<|im_end|>", "two<|im_end|>"]


class TestRaw:
    def test_text_is_trained_up_to_its_end_token(self) -> None:
        tokenizer = tiny_tokenizer()
        row = encode({"text": "Hello World"}, tokenizer)
        assert tokenizer.decode(row.ids) == "Hello World<|im_end|>"
        assert row.ranges == [(1, len(row.ids))]  # nothing predicts the first token

    def test_bos_as_the_tokenizer_does(self) -> None:
        tokenizer = family_tokenizer("mistral")
        row = encode({"text": "Hello"}, tokenizer)
        assert tokenizer.decode(row.ids) == "<s>Hello</s>" and trained(row, tokenizer) == ["Hello</s>"]
        row = encode({"prompt": "Hello", "completion": " World"}, tokenizer)
        assert tokenizer.decode(row.ids) == "<s>Hello World</s>" and trained(row, tokenizer) == [" World</s>"]

    def test_a_tokenizer_that_appends_eos_itself(self) -> None:
        tokenizer = tiny_tokenizer()
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single="<|im_start|> $A <|im_end|>",
            special_tokens=[(t, tokenizer.convert_tokens_to_ids(t)) for t in ("<|im_start|>", "<|im_end|>")],
        )
        for row in ({"text": "Hello"}, {"prompt": "Say ", "completion": "Hello"}):
            encoded = encode(row, tokenizer)
            assert tokenizer.decode(encoded.ids).count("<|im_end|>") == 1
            assert trained(encoded, tokenizer) == ["Hello<|im_end|>"]

    def test_what_the_tokenizer_puts_around_a_text_is_not_doubled(self) -> None:
        mistral = family_tokenizer("mistral")
        row = encode({"text": "<s>[INST] hi [/INST] yo</s>"}, mistral)
        assert mistral.decode(row.ids).count("<s>") == 1 and row.ranges == [(1, len(row.ids))]
        assert row.notes == (BEGINS,)
        row = encode({"prompt": "<s>Hello", "completion": " World"}, mistral)
        assert mistral.decode(row.ids) == "<s>Hello World</s>" and trained(row, mistral) == [" World</s>"]
        both = tiny_tokenizer()
        both.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single="<|im_start|> $A <|im_end|>",
            special_tokens=[(t, both.convert_tokens_to_ids(t)) for t in ("<|im_start|>", "<|im_end|>")],
        )
        row = encode({"text": "<|im_start|>Hello<|im_end|>"}, both)
        plain = encode({"text": "Hello"}, both)
        assert (row.ids, row.ranges, row.notes) == (plain.ids, plain.ranges, (BEGINS, ENDS))
        assert plain.notes == ()
        texts = ("<|im_start|>Hello<|im_end|>", "Hello")
        brought, bare = (encode({"text": text, "label": 1}, both, trains="label") for text in texts)
        assert brought.ids == bare.ids == plain.ids and brought.notes == (BEGINS, ENDS)

    @pytest.mark.parametrize("around", ["<s> $A", "<s> $A </s>", "$A </s>", "$A"])
    @pytest.mark.parametrize("unknown", [None, "<s>"])
    def test_an_alphabet_of_few_letters(self, around: str, unknown: str | None) -> None:
        """Of DNA, which has no "a": what stands before a text and behind it is seen by a text that it has."""
        tokenizer = letters("ACGT", around, unknown)
        for row in ({"text": "ACGTA"}, {"prompt": "ACGT", "completion": "A"}):
            ids = tokenizer.convert_ids_to_tokens(encode(row, tokenizer).ids)
            assert ids == [*(["<s>"] if around.startswith("<s>") else []), *"ACGTA", "</s>"]
        assert take_apart(tokenizer).opens_with_bos is around.startswith("<s>")

    def test_a_tokenizer_that_makes_nothing_of_anything(self) -> None:
        backend = Tokenizer(models.BPE(vocab={"<s>": 0, "A": 1}, merges=[]))
        backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
        assert surroundings(backend) == Surroundings([0], [])
        backend.normalizer = normalizers.Replace(Regex("."), "")
        with pytest.raises(ConfigError, match="makes no tokens of any text") as caught:
            surroundings(backend)
        assert caught.value.problems[0].where == "model.tokenizer_dir"

    def test_eos_in_the_text_is_not_doubled(self) -> None:
        tokenizer = tiny_tokenizer()
        for row in ({"text": "Hello<|im_end|>"}, {"prompt": "p ", "completion": "Hello<|im_end|>"}):
            encoded = encode(row, tokenizer)
            assert encoded.ids.count(tokenizer.eos_token_id) == 1 and encoded.ranges[-1][1] == len(encoded.ids)

    def test_pad_that_is_eos_changes_nothing(self) -> None:
        plain, padded = tiny_tokenizer(), tiny_tokenizer(pad="<|im_end|>")
        assert plain.pad_token_id is None and padded.pad_token_id == padded.eos_token_id
        for row in ({"text": "Hello"}, user_assistant("q", "a")):
            assert encode(row, plain) == encode(row, padded)

    def test_padding_and_truncation_left_on_the_tokenizer_change_nothing(self) -> None:
        tokenizer = tiny_tokenizer(pad="<|im_end|>")
        before = encode({"text": "Hello World again"}, tokenizer), take_apart(tokenizer).fingerprint
        tokenizer(["a", "b c d"], padding="max_length", truncation=True, max_length=2)
        assert (encode({"text": "Hello World again"}, tokenizer), take_apart(tokenizer).fingerprint) == before

    @pytest.mark.parametrize(
        ("prompt", "completion", "straddles", "expected"),
        [
            ("Say", " Hello", False, [" Hello<|im_end|>"]),
            ("Say ", "the end", True, [" the end<|im_end|>"]),  # "␣the" is one token
            ("Say 🙂", "🙂", False, ["🙂<|im_end|>"]),
        ],
    )
    def test_prompt_and_completion(self, prompt: str, completion: str, straddles: bool, expected: list[str]) -> None:
        tokenizer = tiny_tokenizer(vocab_size=600)
        row = encode({"prompt": prompt, "completion": completion}, tokenizer)
        assert tokenizer.decode(row.ids) == prompt + completion + "<|im_end|>"
        assert (row.straddles, trained(row, tokenizer)) == (straddles, expected)

    def test_trimmed_offsets_do_not_hide_a_joining_token(self) -> None:
        tokenizer = tiny_tokenizer(vocab_size=600)
        tokenizer.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
        row = encode({"prompt": "Say ", "completion": "the end"}, tokenizer)
        assert row.straddles and trained(row, tokenizer) == [" the end<|im_end|>"]


class TestLength:
    ROW = user_assistant("Hello World", "one two three four five", "again", "six seven eight")

    @pytest.mark.parametrize("max_length", [*range(8, 120, 7)])
    @pytest.mark.parametrize("name", ["smollm2", "mistral"])
    def test_truncation_keeps_the_beginning(self, name: str, max_length: int) -> None:
        tokenizer = family_tokenizer(name)
        whole = encode(self.ROW, tokenizer)
        mask = np.zeros(len(whole.ids), bool)
        for start, end in whole.ranges:
            mask[start:end] = True
        cut = encode(self.ROW, tokenizer, max_length=max_length)
        assert cut.ids == whole.ids[:max_length]
        assert cut.truncated == (len(whole.ids) > max_length)
        got = np.zeros(len(cut.ids), bool)
        for start, end in cut.ranges:
            got[start:end] = True
        assert (got == mask[:max_length]).all()
        assert cut.dropped == ("" if got.any() else "truncated_before_trained")

    def test_drop(self) -> None:
        tokenizer = tiny_tokenizer()
        length = len(encode(self.ROW, tokenizer).ids)
        assert encode(self.ROW, tokenizer, max_length=length, over_length="drop").dropped == ""
        assert encode(self.ROW, tokenizer, max_length=length - 1, over_length="drop").dropped == "over_length"

    def test_a_row_of_one_token_teaches_nothing(self) -> None:
        tokenizer = tiny_tokenizer()
        assert encode({"text": "<|im_end|>"}, tokenizer).dropped == "nothing_to_train"

    @pytest.mark.parametrize("over_length", ["truncate", "drop"])
    @pytest.mark.parametrize("where", [0, 1])
    def test_huge_rows_are_not_tokenised_to_the_end(self, over_length: str, where: int) -> None:
        tokenizer = tiny_tokenizer()
        contents = ["short", "short"]
        contents[where] = "".join(f"{word} {i} " for i in range(40) for word in CORPUS) * 30
        encoded = encode(user_assistant(*contents), tokenizer, max_length=64, over_length=over_length)
        if over_length == "drop":
            assert encoded.dropped == "over_length"
        else:
            text = tokenizer.apply_chat_template(user_assistant(*contents)["messages"], tokenize=False)
            assert encoded.ids == tokenizer(text[:5000])["input_ids"][:64] and encoded.truncated
            assert encoded.dropped == ("" if where else "truncated_before_trained")

    def test_huge_rows_of_few_tokens_are_not_cut(self) -> None:
        tokenizer = tiny_tokenizer(specials=("<|im_start|>", "<|im_end|>", "x" * 100))
        row = encode({"text": "x" * 100 * 14_000}, tokenizer, max_length=20_000)
        assert len(row.ids) == 14_001 and not row.truncated


def test_chunk_encoder_lays_rows_end_to_end() -> None:
    tokenizer = tiny_tokenizer()
    rows = [user_assistant("q", "a"), {"text": "Hello"}, chat(("user", "q"), ("assistant", "x", False))]
    data = b"\n".join(json.dumps(row).encode() for row in rows) + b"\n\n"
    work = chunk_encoder(take_apart(tokenizer), TokenRules())
    result = work(Task(Chunk(3, 10, data), "auto", encode=True))
    assert (result.source, result.length, result.rows_in, result.blank) == (3, len(data), 3, 1)
    assert result.dropped == {"nothing_to_train": 1} and not result.problems
    block = result.block
    assert block is not None and block.lines.tolist() == [10, 11]
    first, second = encode(rows[0], tokenizer), encode(rows[1], tokenizer)
    assert block.input_ids.tolist() == first.ids + second.ids
    assert block.offsets.tolist() == [0, len(first.ids), len(first.ids) + len(second.ids)]
    assert block.ranges.reshape(-1, 2).tolist() == [list(pair) for pair in first.ranges + second.ranges]
    assert block.supervised.tolist() == [sum(end - start for start, end in row.ranges) for row in (first, second)]


def test_chunk_encoder_with_problems_encodes_nothing() -> None:
    work = chunk_encoder(take_apart(family_tokenizer("gemma")), TokenRules())
    system = json.dumps(chat(("system", "s"), ("user", "q"), ("assistant", "a"))).encode()
    result = work(Task(Chunk(0, 1, b'{"text":"x"}\n' + system + b"\n{\n"), "auto", encode=True))
    assert result.block is None and [problem.line for problem in result.problems] == [2, 3]
    assert work(Task(Chunk(0, 1, b'{"text":"x"}\n'), "auto", encode=False)).block is None


def test_workers_are_light() -> None:
    """What a worker imports: not the seconds and hundreds of megabytes of transformers and torch."""
    code = (
        "import sys, rankzero.data.cache.encode, rankzero.data.inspect.validate;"
        "print(sorted({'torch', 'transformers', 'datasets', 'pyarrow', 'pydantic'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_tokenizer_is_taken_apart_once_in_a_process() -> None:
    """A vocabulary of a hundred thousand words takes a second each time, and the same hash is asked for by everyone."""
    tokenizer = tiny_tokenizer()
    parts, again = take_apart(tokenizer), take_apart(tokenizer)
    assert parts.backend is again.backend and parts == again
    whole = json.dumps(
        [parts.backend, parts.chat_template, sorted(parts.variables.items()), parts.eos_token, parts.eos_id]
    )
    assert parts.fingerprint == again.fingerprint == hashlib.sha256(whole.encode()).hexdigest()
