"""What each family's models read and write, piece by piece, written down from public descriptions of the formats.

Nothing here is rendered by a template, nor uses code of ours: `templates/` has the families' templates in their public
form, and both must come to the same text. A piece is learnt where the model writes it in use: what stands behind the
opening of its turn, up to and with the token that ends it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.held_out.dialogues import Call, Dialogue, Turn


class UnsayableError(Exception):
    """The format has no place for what the dialogue has."""


@dataclass
class Wire:
    """Text and what of it is learnt. `ids`: where ids of calls stand whose form the format prescribes."""

    pieces: list[tuple[str, bool]] = field(default_factory=list)

    def read(self, text: str) -> None:
        self.pieces.append((text, False))

    def learn(self, text: str, turn: Turn) -> None:
        self.pieces.append((text, turn.learn))

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.pieces)


def _json(value: Any, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=False, **options)


def _no_tools(d: Dialogue) -> None:
    if d.tools or any(turn.calls for turn in d.turns):
        raise UnsayableError("tools")


def _alternates(turns: Sequence[Turn]) -> None:
    if any((turn.role == "user") != (i % 2 == 0) for i, turn in enumerate(turns)):
        raise UnsayableError("roles that do not alternate")


def _split(d: Dialogue) -> tuple[str | None, tuple[Turn, ...]]:
    first = d.turns[0]
    return (first.text, d.turns[1:]) if first.role == "system" else (None, d.turns)


def _later_thought(turns: Sequence[Turn]) -> None:
    """Formats that keep the reasoning behind the last question alone."""
    last = max(i for i, turn in enumerate(turns) if turn.role == "user")
    if any(turn.thought for turn in turns[:last]):
        raise UnsayableError("reasoning before the last question")


def _headed(
    d: Dialogue, head: Callable[[str], str], end: str, after: str = "", strip: bool = False, begin: str = ""
) -> Wire:
    """Every turn as head, text, end token; nothing else."""
    _no_tools(d)
    wire = Wire()
    wire.read(begin)
    for turn in d.turns:
        text = turn.with_thought.strip() if strip else turn.with_thought
        wire.read(head(turn.role))
        if turn.role == "assistant":
            wire.learn(text + end, turn)
            wire.read(after)
        else:
            wire.read(text + end + after)
    return wire


def chatml(d: Dialogue) -> Wire:
    return _headed(d, lambda role: f"<|im_start|>{role}\n", "<|im_end|>", "\n")


def _tagged_call(call: Call) -> str:
    return f'\n<tool_call>\n{{"name": "{call.name}", "arguments": {_json(call.arguments)}}}\n</tool_call>'


def _grouped(turns: Sequence[Turn], i: int) -> tuple[bool, bool]:
    """Whether a tool's answer is the first and the last of those that stand together."""
    first = i == 0 or turns[i - 1].role != "tool"
    return first, i + 1 == len(turns) or turns[i + 1].role != "tool"


def hermes(d: Dialogue) -> Wire:
    wire, (system, turns) = Wire(), _split(d)
    wire.read("<|im_start|>system\n" + (system if system is not None else "You are a helpful assistant."))
    if d.tools:
        tools = "\n".join(map(_json, d.tools))
        wire.read(f"\n\nYou are a function calling AI model. Here are the available tools: <tools> {tools} </tools>\n")
        wire.read("For each function call return a json object inside <tool_call></tool_call> XML tags.")
    wire.read("<|im_end|>\n")
    for i, turn in enumerate(turns):
        if turn.role == "assistant":
            said = turn.with_thought + "".join(map(_tagged_call, turn.calls))
            wire.read("<|im_start|>assistant\n")
            wire.learn(said.removeprefix("\n") if turn.calls and not turn.with_thought else said, turn)
            wire.learn("<|im_end|>", turn)
            wire.read("\n")
        elif turn.role == "tool":
            first, last = _grouped(turns, i)
            wire.read("<|im_start|>tool\n" if first else "")
            wire.read(f"<tool_response>\n{turn.text}\n</tool_response>" + ("<|im_end|>\n" if last else "\n"))
        else:
            wire.read(f"<|im_start|>{turn.role}\n{turn.text}<|im_end|>\n")
    return wire


def llama2(d: Dialogue) -> Wire:
    _no_tools(d)
    wire, (system, turns) = Wire(), _split(d)
    _alternates(turns)
    for i, turn in enumerate(turns):
        if turn.role == "user":
            asked = f"<<SYS>>\n{system}\n<</SYS>>\n\n{turn.text}" if system and not i else turn.text
            wire.read(f"<s>[INST] {asked.strip()} [/INST]")
        else:
            wire.learn(f" {turn.with_thought.strip()} </s>", turn)
    return wire


def llama3_1(d: Dialogue) -> Wire:
    wire, (system, turns) = Wire(), _split(d)
    wire.read("<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n")
    wire.read("Environment: ipython\n" if d.tools else "")
    wire.read(f"Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n{(system or '').strip()}<|eot_id|>")
    for i, turn in enumerate(turns):
        if len(turn.calls) > 1 or (turn.calls and turn.with_thought):
            raise UnsayableError("more than one call in a turn")
        role = "ipython" if turn.role == "tool" else turn.role
        wire.read(f"<|start_header_id|>{role}<|end_header_id|>\n\n")
        if turn.calls:
            (call,) = turn.calls
            wire.learn(f'{{"name": "{call.name}", "parameters": {_json(call.arguments)}}}<|eot_id|>', turn)
        elif turn.role == "assistant":
            wire.learn(turn.with_thought.strip() + "<|eot_id|>", turn)
        else:
            if d.tools and not i:
                wire.read("Given the following functions, please respond with a JSON for a function call.\n\n")
                wire.read("".join(_json(tool, indent=4) + "\n\n" for tool in d.tools))
            wire.read((_json(turn.text) if role == "ipython" else turn.text.strip()) + "<|eot_id|>")
    return wire


def llama4(d: Dialogue) -> Wire:
    head = "<|header_start|>{}<|header_end|>\n\n"
    return _headed(d, head.format, "<|eot|>", begin="<|begin_of_text|>")


def mistral_v1(d: Dialogue) -> Wire:
    _no_tools(d)
    _alternates(d.turns)
    wire = Wire()
    wire.read("<s>")
    for turn in d.turns:
        if turn.role == "user":
            wire.read(f"[INST] {turn.text} [/INST]")
        else:
            wire.learn(f"{turn.with_thought}</s>", turn)
            wire.read(" ")
    return wire


ID = "⟨id {}⟩"
"""Stands for an id of nine letters or digits, whichever they are."""


def _mistral_tools(d: Dialogue, gap: str) -> Wire:
    wire, (system, turns) = Wire(), _split(d)
    _alternates([turn for turn in turns if turn.role != "tool" and not turn.calls])
    if any(turn.calls and turn.with_thought for turn in turns):
        raise UnsayableError("text beside a call")
    asked = [i for i, turn in enumerate(turns) if turn.role == "user"]
    if d.tools and len(asked) > 1:
        raise UnsayableError("tools, which stand before the last question alone")
    if system is not None and turns[-1].role != "user":
        raise UnsayableError("a system prompt, which stands in a question at the end alone")
    ids = {call.id: ID.format(n) for n, call in enumerate(call for turn in turns for call in turn.calls)}
    wire.read("<s>")
    for i, turn in enumerate(turns):
        if turn.role == "user":
            if d.tools and i == asked[-1]:
                wire.read(f"[AVAILABLE_TOOLS]{gap}[{', '.join(map(_json, d.tools))}][/AVAILABLE_TOOLS]")
            wire.read(f"[INST]{gap}{turn.text}[/INST]")
        elif turn.calls:
            calls = (
                f'{{"name": "{call.name}", "arguments": {_json(call.arguments)}, "id": "{ids[call.id]}"}}'
                for call in turn.calls
            )
            wire.learn(f"[TOOL_CALLS]{gap}[{', '.join(calls)}]</s>", turn)
        elif turn.role == "tool":
            wire.read(f'[TOOL_RESULTS]{gap}{{"content": {turn.text}, "call_id": "{ids[turn.answers]}"}}[/TOOL_RESULTS]')
        else:
            wire.learn(gap + (turn.with_thought.strip() if gap else turn.with_thought) + "</s>", turn)
    return wire


def mistral_v3(d: Dialogue) -> Wire:
    return _mistral_tools(d, " ")


def mistral_nemo(d: Dialogue) -> Wire:
    return _mistral_tools(d, "")


def mistral_v7(d: Dialogue) -> Wire:
    _no_tools(d)
    wire = Wire()
    wire.read("<s>")
    wire.read("" if d.turns[0].role == "system" else "[SYSTEM_PROMPT]You are Mistral Small 3.[/SYSTEM_PROMPT]")
    for turn in d.turns:
        if turn.role == "assistant":
            wire.learn(turn.with_thought + "</s>", turn)
        else:
            tag = "INST" if turn.role == "user" else "SYSTEM_PROMPT"
            wire.read(f"[{tag}]{turn.text}[/{tag}]")
    return wire


def _gemma(turns: Sequence[Turn], prefix: str = "") -> Wire:
    _alternates(turns)
    wire = Wire()
    wire.read("<bos>")
    for turn in turns:
        wire.read(f"<start_of_turn>{'model' if turn.role == 'assistant' else 'user'}\n{prefix}")
        prefix = ""
        wire.learn(turn.with_thought.strip() + "<end_of_turn>", turn) if turn.role == "assistant" else wire.read(
            turn.text.strip() + "<end_of_turn>"
        )
        wire.read("\n")
    return wire


def gemma2(d: Dialogue) -> Wire:
    _no_tools(d)
    if d.turns[0].role == "system":
        raise UnsayableError("a system prompt")
    return _gemma(d.turns)


def gemma3(d: Dialogue) -> Wire:
    _no_tools(d)
    system, turns = _split(d)
    return _gemma(turns, "" if system is None else system + "\n\n")


def phi3(d: Dialogue) -> Wire:
    wire = _headed(d, "<|{}|>\n".format, "<|end|>", "\n")
    wire.read("<|endoftext|>")
    return wire


def phi4(d: Dialogue) -> Wire:
    return _headed(d, "<|im_start|>{}<|im_sep|>".format, "<|im_end|>")


_QWEN_TOOLS = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function "
    "signatures within <tools></tools> XML tags:\n<tools>{}\n</tools>\n\nFor each function call, return a json object "
    "with function name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n"
    '{{"name": <function-name>, "arguments": <args-json-object>}}\n</tool_call>'
)


def _qwen_turns(wire: Wire, turns: Sequence[Turn], said: Callable[[int, Turn], str]) -> None:
    for i, turn in enumerate(turns):
        if turn.role == "assistant":
            wire.read("<|im_start|>assistant\n")
            wire.learn(said(i, turn) + "<|im_end|>", turn)
            wire.read("\n")
        elif turn.role == "tool":
            first, last = _grouped(turns, i)
            wire.read("<|im_start|>user" if first else "")
            wire.read(f"\n<tool_response>\n{turn.text}\n</tool_response>" + ("<|im_end|>\n" if last else ""))
        else:
            wire.read(f"<|im_start|>{turn.role}\n{turn.text}<|im_end|>\n")


def qwen2_5(d: Dialogue) -> Wire:
    wire, (system, turns) = Wire(), _split(d)
    wire.read("<|im_start|>system\n")
    default = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
    wire.read(default if system is None else system)
    if d.tools:
        wire.read("\n\n" + _QWEN_TOOLS.format("".join("\n" + _json(tool) for tool in d.tools)))
    wire.read("<|im_end|>\n")

    def said(_i: int, turn: Turn) -> str:
        calls = "".join(map(_tagged_call, turn.calls))
        return turn.with_thought + calls if turn.with_thought else calls.removeprefix("\n")

    _qwen_turns(wire, turns, said)
    return wire


def qwen3(d: Dialogue) -> Wire:
    """The reasoning of all turns that are learnt, which the model's own template keeps of the last ones."""
    wire, (system, turns) = Wire(), _split(d)
    if d.tools:
        tools = _QWEN_TOOLS.format("".join("\n" + _json(tool) for tool in d.tools))
        wire.read(f"<|im_start|>system\n{system + chr(10) * 2 if system is not None else ''}{tools}<|im_end|>\n")
    elif system is not None:
        wire.read(f"<|im_start|>system\n{system}<|im_end|>\n")
    asked = max((i for i, turn in enumerate(turns) if turn.role == "user"), default=len(turns) - 1)

    def said(i: int, turn: Turn) -> str:
        last = i == len(turns) - 1 and i > asked
        thinks = bool(turn.thought) or last
        text = turn.text.lstrip("\n") if thinks else turn.text
        calls = "".join(map(_tagged_call, turn.calls))
        calls = calls if turn.text else calls.removeprefix("\n")
        return (f"<think>\n{turn.thought}\n</think>\n\n" if thinks else "") + text + calls

    _qwen_turns(wire, turns, said)
    return wire


def qwen3_5(d: Dialogue) -> Wire:
    """With thinking off, answers behind the last question open with an empty thought, unless the row has one."""
    _no_tools(d)
    asked = max(i for i, turn in enumerate(d.turns) if turn.role == "user")
    wire = Wire()
    for i, turn in enumerate(d.turns):
        wire.read(f"<|im_start|>{turn.role}\n")
        text = turn.text.strip()
        if turn.role != "assistant":
            wire.read(f"{text}<|im_end|>")
        elif turn.thought:
            wire.learn(f"<think>\n{turn.thought}\n</think>\n\n{text}<|im_end|>", turn)
        else:
            wire.read("<think>\n\n</think>\n\n" if i > asked else "")
            wire.learn(f"{text}<|im_end|>", turn)
        wire.read("\n")
    return wire


_EOS = "<｜end▁of▁sentence｜>"


def deepseek_v3(d: Dialogue) -> Wire:
    if d.tools:
        raise UnsayableError("a list of tools")
    if any(turn.calls and turn.with_thought for turn in d.turns):
        raise UnsayableError("text beside a call")
    wire = Wire()
    wire.read("<｜begin▁of▁sentence｜>" + "".join(turn.text for turn in d.turns if turn.role == "system"))
    for i, turn in enumerate(d.turns):
        before = d.turns[i - 1].role if i else ""
        if turn.role == "user":
            wire.read("<｜User｜>" + turn.text)
        elif turn.role == "tool":
            wire.read("\n" if before == "tool" else "<｜tool▁outputs▁begin｜>")
            wire.read(f"<｜tool▁output▁begin｜>{turn.text}<｜tool▁output▁end｜>")
        elif turn.role == "assistant":
            wire.read("<｜tool▁outputs▁end｜>" if before == "tool" else "<｜Assistant｜>")
            wire.learn(turn.with_thought, turn)
            for n, call in enumerate(turn.calls):
                wire.learn("\n" if n else "<｜tool▁calls▁begin｜>", turn)
                wire.learn(f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{call.name}\n```json\n", turn)
                wire.learn(f"{_json(call.arguments)}\n```<｜tool▁call▁end｜>", turn)
            wire.learn(("<｜tool▁calls▁end｜>" if turn.calls else "") + _EOS, turn)
    return wire


def deepseek_r1(d: Dialogue) -> Wire:
    _no_tools(d)
    wire = Wire()
    wire.read("<｜begin▁of▁sentence｜>" + "".join(turn.text for turn in d.turns if turn.role == "system"))
    for turn in d.turns:
        if turn.role == "user":
            wire.read("<｜User｜>" + turn.text)
        elif turn.role == "assistant":
            wire.read("<｜Assistant｜>" + ("<think>\n" if turn.thought else ""))
            wire.learn(turn.with_thought.removeprefix("<think>\n") + _EOS, turn)
    return wire


def command_r(d: Dialogue) -> Wire:
    system, turns = _split(d)
    _alternates(turns)
    _no_tools(d)
    names = {"user": "USER", "assistant": "CHATBOT"}
    wire = Wire()
    wire.read("<BOS_TOKEN>")
    if system is not None:
        wire.read(f"<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>{system}<|END_OF_TURN_TOKEN|>")
    rest = _headed(
        Dialogue(turns),
        lambda role: f"<|START_OF_TURN_TOKEN|><|{names[role]}_TOKEN|>",
        "<|END_OF_TURN_TOKEN|>",
        strip=True,
    )
    return Wire(wire.pieces + rest.pieces)


def cohere2(d: Dialogue) -> Wire:
    if any(turn.calls and turn.with_thought for turn in d.turns):
        raise UnsayableError("text beside a call")
    begin, end = "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>"
    wire = Wire()
    wire.read(f"<BOS_TOKEN>{begin}<|SYSTEM_TOKEN|># System Preamble\nYou are Command.\n")
    if d.tools:
        wire.read("\n# Tools\n" + "".join(_json(tool) + "\n" for tool in d.tools))
    wire.read(end)
    called = answered = 0
    for i, turn in enumerate(d.turns):
        if turn.role == "assistant":
            wire.read(begin + "<|CHATBOT_TOKEN|>")
            lines = []
            for call in turn.calls:
                head = f'\n    {{"tool_call_id": "{called}", "tool_name": "{call.name}", '
                lines.append(head + f'"parameters": {_json(call.arguments)}}}')
                called += 1
            if turn.calls:
                wire.learn(f"<|START_ACTION|>[{','.join(lines)}\n]<|END_ACTION|>{end}", turn)
            else:
                wire.learn(f"<|START_RESPONSE|>{turn.with_thought}<|END_RESPONSE|>{end}", turn)
        elif turn.role == "tool":
            first, last = _grouped(d.turns, i)
            wire.read(f"{begin}<|SYSTEM_TOKEN|><|START_TOOL_RESULT|>[" if first else "")
            wire.read(f'\n    {{"tool_call_id": "{answered}", "results": {{"0": {_json(turn.text)}}}}}')
            wire.read(f"\n]<|END_TOOL_RESULT|>{end}" if last else ",")
            answered += 1
        else:
            wire.read(f"{begin}<|{turn.role.upper()}_TOKEN|>{turn.text}{end}")
    return wire


def _harmony_can(turns: Sequence[Turn]) -> None:
    if any(len(turn.calls) > 1 for turn in turns):
        raise UnsayableError("more than one call in a turn")
    for i, turn in enumerate(turns):
        later = any(after.role == "assistant" and not after.calls for after in turns[i + 1 :])
        if (turn.thought and (later or i < len(turns) - 1)) or (turn.calls and turn.text and later):
            raise UnsayableError("reasoning of turns before the last")


def gpt_oss(d: Dialogue) -> Wire:
    system, turns = _split(d)
    _harmony_can(turns)
    wire = Wire()
    wire.read(
        "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n"
        "Knowledge cutoff: 2024-06\nCurrent date: 2024-07-26\n\nReasoning: medium\n\n"
        "# Valid channels: analysis, commentary, final. Channel must be included for every message."
    )
    wire.read("\nCalls to these tools must go to the commentary channel: 'functions'." if d.tools else "")
    wire.read("<|end|>")
    if system or d.tools:
        wire.read("<|start|>developer<|message|>" + (f"# Instructions\n\n{system}\n\n" if system else ""))
        if d.tools:
            wire.read("# Tools\n\n## functions\n\nnamespace functions {\n\n")
            for tool in d.tools:
                f = tool["function"]
                wire.read(f"// {f['description']}\ntype {f['name']} = (_: {_json(f['parameters'])}) => any;\n\n")
            wire.read("} // namespace functions")
        wire.read("<|end|>")
    name = ""
    for i, turn in enumerate(turns):
        if turn.role == "user":
            wire.read(f"<|start|>user<|message|>{turn.text}<|end|>")
        elif turn.role == "tool":
            wire.read(
                f"<|start|>functions.{name} to=assistant<|channel|>commentary<|message|>{_json(turn.text)}<|end|>"
            )
        else:
            wire.read("<|start|>assistant")
            if turn.thought:
                wire.learn(f"<|channel|>analysis<|message|>{turn.thought}<|end|><|start|>assistant", turn)
            for call in turn.calls:
                name = call.name
                wire.learn(f" to=functions.{name}<|channel|>commentary json<|message|>", turn)
                wire.learn(_json(call.arguments) + "<|call|>", turn)
            if not turn.calls:
                end = "<|return|>" if i == len(turns) - 1 else "<|end|>"
                wire.learn(f"<|channel|>final<|message|>{turn.text}{end}", turn)
    return wire


def glm4_5(d: Dialogue) -> Wire:
    """No token ends a turn but the next one's beginning; at the end of the row the end token is put behind it."""
    _later_thought(d.turns)
    wire = Wire()
    wire.read("[gMASK]<sop>")
    if d.tools:
        tools = "".join(_json(tool) + "\n" for tool in d.tools)
        wire.read(f"<|system|>\n# Tools\n\nYou may call one or more functions.\n<tools>\n{tools}</tools>")
    for i, turn in enumerate(d.turns):
        if turn.role == "tool":
            wire.read("<|observation|>" if _grouped(d.turns, i)[0] else "")
            wire.read(f"\n<tool_response>\n{turn.text}\n</tool_response>")
        elif turn.role == "assistant":
            wire.read("<|assistant|>")
            wire.learn(
                f"\n<think>{turn.thought}</think>" + (f"\n{turn.text.strip()}" if turn.text.strip() else ""), turn
            )
            for call in turn.calls:
                wire.learn(f"\n<tool_call>{call.name}", turn)
                for key, value in call.arguments.items():
                    written = value if isinstance(value, str) else _json(value)
                    wire.learn(f"\n<arg_key>{key}</arg_key>\n<arg_value>{written}</arg_value>", turn)
                wire.learn("\n</tool_call>", turn)
        else:
            wire.read(f"<|{turn.role}|>\n{turn.text}")
    if d.turns[-1].role == "assistant":
        wire.learn("<|endoftext|>", d.turns[-1])
    return wire


def smollm3(d: Dialogue) -> Wire:
    """Its template marks what is generated, with the opening of the turn, which in use is the prompt's."""
    _no_tools(d)
    system, turns = _split(d)
    wire = Wire()
    wire.read(
        "<|im_start|>system\n## Metadata\n\nKnowledge Cutoff Date: June 2025\nToday Date: 26 July 2024\n"
        "Reasoning Mode: /think\n\n## Custom Instructions\n\n"
    )
    wire.read(system if system else "You are a helpful AI assistant named SmolLM, trained by Hugging Face.")
    wire.read("\n\n<|im_end|>\n")
    for turn in turns:
        wire.read(f"<|im_start|>{turn.role}\n")
        if turn.role == "assistant":
            wire.learn(turn.with_thought.lstrip("\n") + "<|im_end|>", turn)
            wire.read("\n")
        else:
            wire.read(f"{turn.text}<|im_end|>\n")
    return wire


def granite3(d: Dialogue) -> Wire:
    if any(turn.calls for turn in d.turns):
        raise UnsayableError("calls")
    system, turns = _split(d)
    default = "Knowledge Cutoff Date: April 2024.\nYou are Granite, developed by IBM."
    first = Turn("system", default if system is None else system)
    return _headed(Dialogue((first, *turns)), "<|start_of_role|>{}<|end_of_role|>".format, "<|end_of_text|>", "\n")


def olmo2(d: Dialogue) -> Wire:
    _no_tools(d)
    wire = Wire()
    wire.read("<|endoftext|>")
    for i, turn in enumerate(d.turns):
        wire.read(f"<|{turn.role}|>\n")
        if turn.role == "assistant":
            wire.learn(turn.with_thought + "<|endoftext|>", turn)
        else:
            wire.read(turn.text)
        wire.read("" if turn.role == "assistant" and i == len(d.turns) - 1 else "\n")
    return wire


def zephyr(d: Dialogue) -> Wire:
    return _headed(d, "<|{}|>\n".format, "</s>", "\n")


def vicuna(d: Dialogue) -> Wire:
    _no_tools(d)
    system, turns = _split(d)
    wire = Wire()
    default = "A chat between a curious user and an artificial intelligence assistant."
    wire.read((default if system is None else system) + " ")
    for turn in turns:
        if turn.role == "user":
            wire.read(f"USER: {turn.text.strip()} ")
        else:
            wire.read("ASSISTANT:")
            wire.learn(f" {turn.with_thought.strip()}</s>", turn)
    return wire


def kimi_k2(d: Dialogue) -> Wire:
    """Which function is called says the id alone: its name, and how many calls there were before."""
    wire = Wire()
    calls = [call for turn in d.turns for call in turn.calls]
    ids = {call.id: f"functions.{call.name}:{n}" for n, call in enumerate(calls)}
    if d.tools:
        wire.read(f"<|im_system|>tool_declare<|im_middle|>{_json(list(d.tools))}<|im_end|>")
    if d.turns[0].role != "system":
        default = "You are Kimi, an AI assistant created by Moonshot AI."
        wire.read(f"<|im_system|>system<|im_middle|>{default}<|im_end|>")
    for turn in d.turns:
        kind = turn.role if turn.role in ("user", "assistant") else "system"
        wire.read(f"<|im_{kind}|>{turn.role}<|im_middle|>")
        if turn.role == "assistant":
            made = "".join(
                f"<|tool_call_begin|>{ids[call.id]}<|tool_call_argument_begin|>{_json(call.arguments)}<|tool_call_end|>"
                for call in turn.calls
            )
            section = f"<|tool_calls_section_begin|>{made}<|tool_calls_section_end|>" if made else ""
            wire.learn(turn.with_thought + section + "<|im_end|>", turn)
        elif turn.role == "tool":
            wire.read(f"## Return of {ids[turn.answers]}\n{turn.text}<|im_end|>")
        else:
            wire.read(turn.text + "<|im_end|>")
    return wire
