"""Tools and their calls through templates: what is trained, and what is said where a template leaves them out."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from rankzero.data.cache.encode import Task, chunk_encoder
from rankzero.data.rows.chunks import Chunk
from rankzero.data.rows.conversation import Conversation
from rankzero.data.rows.problems import RowProblem
from rankzero.data.tokens.call_form import IDS_REWRITTEN
from rankzero.data.tokens.chat import Renderer, TokenRules
from rankzero.data.tokens.tokenizer import take_apart
from tests.support.families import family_tokenizer
from tests.support.tiny import tiny_tokenizer
from tests.unit.data.rows.formats.support import CALL, ROWS, TOOL, good

HEAD = "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}{% for m in messages %}"
OPENING = "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
CALLS = "{% for c in m.tool_calls %}{{ '\n<tool_call>\n' }}{{ c.function | tojson }}\n</tool_call>{% endfor %}"

# Text and calls in one turn, tool answers as user turns: as Qwen 2.5.
QWEN = (
    HEAD + "{% if m.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ m.content }}\n</tool_response><|im_end|>\n"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% if m.tool_calls %}" + CALLS + "{% endif %}<|im_end|>\n{% endif %}" + OPENING
)
# A call instead of the text, one at most: as Llama 3.1.
LLAMA = (
    HEAD + "{% if m.tool_calls is defined %}{% if m.tool_calls | length != 1 %}"
    "{{ raise_exception('This model only supports single tool-calls at once!') }}{% endif %}"
    "<|im_start|>assistant\n{{ m.tool_calls[0].function | tojson }}<|im_end|>\n"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}" + OPENING
)
# A tool answer has to follow a call: as Mistral's.
STRICT = QWEN.replace(
    "{% if m.role == 'tool' %}",
    "{% if m.role == 'tool' and not (loop.previtem.tool_calls or loop.previtem.role == 'tool') %}"
    "{{ raise_exception('tool answers follow calls') }}{% endif %}{% if m.role == 'tool' %}",
)
# Calls end otherwise than text, as where Llama 3.1 runs code.
OTHER_END = QWEN.replace("{% endif %}<|im_end|>\n{% endif %}", "<|eom|>\n{% else %}<|im_end|>\n{% endif %}{% endif %}")
NO_TOOLS = QWEN.replace("{% if tools %}", "{% if false %}")
NO_CALLS = QWEN.replace(CALLS, "")
FIRST_CALL = QWEN.replace("{% for c in m.tool_calls %}", "{% for c in m.tool_calls[:1] %}")
GENERATION = QWEN.replace(
    "<|im_start|>{{ m.role }}\n{{ m.content }}",
    "<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}{{ m.content }}" + CALLS + "<|im_end|>"
    "{% endgeneration %}\n{% else %}{{ m.content }}<|im_end|>\n{% endif %}{% set m = {} %}{% if false %}",
).replace("{% if false %}{% if m.tool_calls %}" + CALLS + "{% endif %}<|im_end|>\n{% endif %}", "{% endif %}")

SPECIALS = ("<|im_start|>", "<|im_end|>", "<|eom|>")
FUNCTION = '{"name": "add", "arguments": {"a": 1, "b": [2, "é"]}}'
CALLED = f"\n<tool_call>\n{FUNCTION}\n</tool_call>"


def render(row: dict[str, Any], template: str | None, **rules: Any) -> Any:
    tokenizer = tiny_tokenizer(chat_template=template, specials=SPECIALS) if template else tiny_tokenizer()
    conversation = good(row)
    assert isinstance(conversation, Conversation)
    return Renderer(take_apart(tokenizer), TokenRules(**rules)).render(conversation)


def trained(row: dict[str, Any], template: str, **rules: Any) -> list[str]:
    result = render(row, template, **rules)
    assert not isinstance(result, RowProblem), result
    return [result.text[start:end] for start, end in result.spans]


def calling(content: str | None = None, calls: int = 1, *, answered: bool = True, **row: Any) -> dict[str, Any]:
    """A question, a turn that calls, and, unless the row ends there, answers and a last turn."""
    named = [{**CALL, "id": f"c{i}"} for i in range(calls)]
    turns: list[dict[str, Any]] = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": content, "tool_calls": named},
    ]
    if answered:
        turns += [{"role": "tool", "tool_call_id": call["id"], "content": "3"} for call in named]
        turns.append({"role": "assistant", "content": "It is 3."})
    return {"messages": turns, "tools": [TOOL], **row}


@pytest.mark.parametrize("template", [QWEN, STRICT, GENERATION], ids=["qwen", "strict", "generation"])
class TestTrained:
    def test_calls_with_their_end_token(self, template: str) -> None:
        assert trained(calling(), template) == [CALLED + "<|im_end|>", "It is 3.<|im_end|>"]

    def test_text_beside_a_call(self, template: str) -> None:
        assert trained(calling("Let me see."), template)[0] == "Let me see." + CALLED + "<|im_end|>"

    def test_several_calls(self, template: str) -> None:
        assert trained(calling(calls=3), template) == [CALLED * 3 + "<|im_end|>", "It is 3.<|im_end|>"]

    def test_a_row_that_ends_with_a_call(self, template: str) -> None:
        assert trained(calling(answered=False), template) == [CALLED + "<|im_end|>"]
        assert not render(calling(answered=False), template).add_eos

    def test_calls_marked_false(self, template: str) -> None:
        row = calling()
        row["messages"][1]["loss"] = False
        assert trained(row, template) == ["It is 3.<|im_end|>"]
        whole = "".join(trained(row, template, assistant_only_loss=False))
        assert FUNCTION not in whole and "<tool_response>\n3" in whole


def test_a_call_instead_of_text() -> None:
    assert trained(calling(), LLAMA) == [FUNCTION + "<|im_end|>", "It is 3.<|im_end|>"]
    assert render(calling(calls=2), LLAMA).what.endswith("only supports single tool-calls at once!")


def test_a_call_that_ends_otherwise_than_text() -> None:
    assert trained(calling(), OTHER_END) == [CALLED + "<|eom|>", "It is 3.<|im_end|>"]
    assert trained(calling(answered=False), OTHER_END) == [CALLED + "<|eom|>"]


def test_the_text_is_that_of_transformers() -> None:
    row = calling("Let me see.", 2)
    tokenizer = tiny_tokenizer(chat_template=QWEN, specials=SPECIALS)
    messages = json.loads(json.dumps(row["messages"]))
    for call in messages[1]["tool_calls"]:
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    theirs = tokenizer.apply_chat_template(messages, tools=[TOOL], tokenize=False)
    assert render(row, QWEN).text == theirs


@pytest.mark.parametrize(
    ("row", "template", "reason"),
    [
        (calling(), None, "tools left out by the chat template"),
        (calling(tools=None), None, "tool calls left out by the chat template"),
        (calling(), NO_TOOLS, "tools left out by the chat template"),
        (calling(), NO_CALLS, "tool calls left out by the chat template"),
        (calling(calls=2), FIRST_CALL, "tool calls left out by the chat template"),
        (calling("Let me see."), LLAMA, "text left out by the chat template"),
        (
            {"messages": [*calling()["messages"][:1], {"role": "assistant", "content": "a"}], "tools": [TOOL]},
            None,
            "tools",
        ),
    ],
)
def test_what_a_template_leaves_out_is_a_problem(row: dict[str, Any], template: str | None, reason: str) -> None:
    found = render(row, template)
    assert isinstance(found, RowProblem) and found.line == 7
    assert found.reason.startswith(reason) and "data.chat_template" in found.hint


# Arguments as text, and no content beside calls: as DeepSeek V3.
TEXT_ARGUMENTS = (
    "{% for m in messages %}<|im_start|>{{ m.role + '\n' }}{% if m.content is none %}{% for c in m.tool_calls %}"
    "{{ '<tool_call>' + c.function.name + c.function.arguments + '</tool_call>' }}{% endfor %}"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>\n" + OPENING
)
# Ids of nine letters and digits: as Mistral's.
SHORT_IDS = (
    "{% for m in messages %}<|im_start|>{{ m.role + '\n' + m.content }}{% for c in m.tool_calls %}"
    "{% if c.id | length != 9 %}{{ raise_exception('nine') }}{% endif %}"
    "{{ c.id + (c.function | tojson) }}{% endfor %}"
    "{% if m.role == 'tool' %}{% if m.tool_call_id | length != 9 %}{{ raise_exception('nine') }}{% endif %}"
    "{{ m.tool_call_id }}{% endif %}<|im_end|>\n" + OPENING
)


def test_arguments_in_the_form_that_the_template_takes() -> None:
    first, last = trained(calling(tools=None), TEXT_ARGUMENTS)
    assert first == '<tool_call>add{"a": 1, "b": [2, "é"]}</tool_call><|im_end|>'
    assert last == "It is 3.<|im_end|>"


def test_ids_of_calls_in_the_form_that_the_template_takes() -> None:
    row = render(calling(calls=2, tools=None), SHORT_IDS)
    ids = re.findall(r"([0-9A-Za-z]{9})(?:\{|<)", row.text)
    assert len(ids) == 4 and ids[:2] == [row.text.split("tool\n3")[n][:9] for n in (1, 2)] and ids[0] != ids[1]
    assert row.notes == (IDS_REWRITTEN["short"],)
    given = calling(calls=1, tools=None)
    given["messages"][1]["tool_calls"][0]["id"] = given["messages"][2]["tool_call_id"] = "abcdef123"
    kept = render(given, SHORT_IDS)
    assert "abcdef123{" in kept.text and "3abcdef123" in kept.text and kept.notes == ()


def test_ids_where_the_row_has_none_go_with_the_calls_in_order() -> None:
    row = calling(calls=2, tools=None)
    for call, answer in zip(row["messages"][1]["tool_calls"], row["messages"][2:4], strict=True):
        del call["id"], answer["tool_call_id"]
    text = render(row, SHORT_IDS).text
    first, second = re.findall(r"([0-9A-Za-z]{9})\{", text)
    assert f"3{first}<" in text.split(f"3{second}<")[0] and first != second


# Which function is called says the id alone: as Kimi's.
IDS_ALONE = (
    HEAD + "<|im_start|>{{ m.role + '\n' }}{% if m.role == 'tool' %}{{ m.tool_call_id + ' gave ' }}{% endif %}"
    "{{ m.content }}{% for c in m.tool_calls %}{{ '<call>' + c.id + (c.function.arguments | tojson) }}{% endfor %}"
    "<|im_end|>\n" + OPENING
)


class TestIdsThatNameTheFunction:
    def test_are_made_where_the_template_names_it_nowhere_else(self) -> None:
        row = render(calling(calls=2), IDS_ALONE)
        spans = [row.text[start:end] for start, end in row.spans]
        arguments = '{"a": 1, "b": [2, "é"]}'
        assert spans[0] == f"<call>functions.add:0{arguments}<call>functions.add:1{arguments}<|im_end|>"
        assert "functions.add:0 gave 3" in row.text and "functions.add:1 gave 3" in row.text
        assert row.notes == (IDS_REWRITTEN["named"],)

    def test_are_made_where_the_row_has_none(self) -> None:
        row = calling()
        del row["messages"][1]["tool_calls"][0]["id"], row["messages"][2]["tool_call_id"]
        assert trained(row, IDS_ALONE)[0].startswith("<call>functions.add:0{")

    def test_stay_where_the_row_has_them(self) -> None:
        row = calling()
        name = "functions.add:5"
        row["messages"][1]["tool_calls"][0]["id"] = row["messages"][2]["tool_call_id"] = name
        kept = render(row, IDS_ALONE)
        assert f"<call>{name}" in kept.text and f"{name} gave 3" in kept.text and kept.notes == ()


# Names in the answers of tools, and nowhere else; names without their arguments.
NAMES_LATER = QWEN.replace("c.function | tojson", "c.function.arguments | tojson").replace(
    "{{ m.content }}\n</tool_response>",
    "{{ m.content + messages[loop.index0 - 1].tool_calls[0].function.name }}\n</tool_response>",
)
NO_ARGUMENTS = QWEN.replace("c.function | tojson", "c.function.name")


@pytest.mark.parametrize("everything", [False, True])
def test_a_call_is_not_trained_without_its_function_s_name(everything: bool) -> None:
    nowhere = QWEN.replace("c.function | tojson", "c.function.arguments | tojson")
    for template in (nowhere,) if everything else (nowhere, NAMES_LATER):
        found = render(calling(), template, assistant_only_loss=not everything)
        assert isinstance(found, RowProblem) and found.reason == "names of functions left out by the chat template"
    context = calling()
    context["messages"][1]["loss"] = False
    assert not isinstance(render(context, nowhere, assistant_only_loss=not everything), RowProblem)


def test_a_call_without_its_arguments_is_a_problem() -> None:
    found = render(calling(), NO_ARGUMENTS)
    assert isinstance(found, RowProblem) and found.reason == "arguments left out by the chat template"


def test_a_template_of_its_own_for_tools() -> None:
    tokenizer = tiny_tokenizer(chat_template={"default": NO_TOOLS, "tool_use": QWEN}, specials=SPECIALS)  # type: ignore[arg-type]
    parts = take_apart(tokenizer)
    renderer = Renderer(parts, TokenRules())
    with_tools, without = good(calling()), good({"messages": calling()["messages"][::3]})
    assert renderer.render(with_tools) == render(calling(), QWEN)
    assert renderer.render(without) == render({"messages": calling()["messages"][::3]}, NO_TOOLS)
    assert parts.fingerprint != take_apart(tiny_tokenizer(chat_template=NO_TOOLS, specials=SPECIALS)).fingerprint


def test_an_unneeded_list_of_tools_costs_nothing() -> None:
    assert trained(calling(tools=[]), QWEN) == trained(calling(), QWEN)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (ROWS["messages"][2], "needs a vision model"),
        (ROWS["preference"][0], "preferences are for task dpo"),
        (ROWS["preference"][1], "preferences are for task dpo"),
        (ROWS["classification"][0], "labels are for task classify"),
    ],
)
def test_rows_for_other_tasks_are_problems_when_they_are_encoded(row: dict[str, Any], reason: str) -> None:
    work = chunk_encoder(take_apart(family_tokenizer("smollm2")), TokenRules())
    result = work(Task(Chunk(0, 1, json.dumps(row).encode()), "auto", encode=True))
    (problem,) = result.problems
    assert problem.reason == reason and problem.hint and result.block is None


def test_rows_left_out_and_rows_of_trees_are_counted() -> None:
    work = chunk_encoder(take_apart(family_tokenizer("smollm2")), TokenRules())
    rows = [ROWS["oasst"][0], {"text": "t", "label": -1}, {"ask": "q", "reply": "a"}]
    data = "\n".join(json.dumps(row) for row in rows).encode()
    result = work(Task(Chunk(0, 1, data), "auto", True, {"prompt": "ask", "completion": "reply"}))
    assert not result.problems and result.rows_in == 3 and result.dropped == {"unlabelled": 1}
    assert result.block is not None and list(result.block.lines) == [1, 3]
