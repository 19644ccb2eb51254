"""How results of each kind are loaded: Python and commands, as a model card shows them. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from shlex import quote
from typing import Any, Literal

Kind = Literal["causal", "vision", "classifier"]
Form = Literal["adapter", "merged", "whole"]
"""adapter: beside a base; merged: both as one model; whole: all weights were trained."""

_CLASSES: dict[Kind, str] = {
    "causal": "AutoModelForCausalLM",
    "vision": "AutoModelForImageTextToText",
    "classifier": "AutoModelForSequenceClassification",
}
_LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM takes as the largest rank of adapters."""
_FOUR_BITS = """\
four_bits = BitsAndBytesConfig(  # as it was trained on
    load_in_4bit=True,
    bnb_4bit_quant_type="nf4",
    bnb_4bit_use_double_quant=True,
    bnb_4bit_compute_dtype=torch.{dtype},
)"""
_CHAT = """\
chat = [{{"role": "user", "content": "What is the capital of Peru?"}}]
inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True{more})"""
_TEXT = 'inputs = tokenizer("The capital of Peru is", return_tensors="pt")'
_UNENDED = (
    "inputs = {{name: value[:, :-{count}] for name, value in inputs.items()}}  # the text goes on: no end behind it"
)
_PICTURE = """\
image = Image.new("RGB", (224, 224), "teal")  # yours
chat = [{{"role": "user", "content": [{{"type": "image"}}, {{"type": "text", "text": "What is this?"}}]}}]
text = processor.apply_chat_template(chat, add_generation_prompt=True{more})
inputs = processor(text=[text], images=[image], add_special_tokens=False, return_tensors="pt")"""
_WRITE = """\
reply = model.generate(**inputs, max_new_tokens=64)
print({reader}.decode(reply[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))"""
_CLASSIFY = """\
inputs = tokenizer("a text", return_tensors="pt"{cut})
with torch.inference_mode():
    print(model.config.id2label[int(model(**inputs).logits.argmax())])"""


@dataclass(frozen=True, slots=True)
class Loading:
    """What a result is, as far as loading it goes."""

    kind: Kind
    form: Form
    quantization: str = "none"
    """Of an adapter's base as it was trained on."""
    dtype: str | None = None
    """The precision that it was computed in, and packed from; None: nothing says it."""
    labels: Sequence[str] | None = None
    is_chat: bool = False
    revision: str | None = None
    """Of an adapter's base."""
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """As data.chat_template_kwargs."""
    ends_of_text: int = 0
    """How many tokens the tokenizer puts behind a text."""
    own_code: bool = False
    """Whether the model's own has to be trusted."""
    max_length: int | None = None
    """Longest text of a classifier, in tokens; None: nothing says it."""


def python(result: Loading) -> str:
    """A script that loads a result from the directory that it is run in, and asks it something."""
    kind, form = result.kind, result.form
    adapter, packed = form == "adapter", form == "adapter" and result.quantization == "nf4"
    imports = [_CLASSES[kind], "AutoProcessor" if kind == "vision" else "AutoTokenizer"]
    imports += ["BitsAndBytesConfig"] if packed else []
    own_ends = adapter and kind != "classifier"
    imports += ["GenerationConfig"] if own_ends else []
    lines = ["import torch"] if packed or kind == "classifier" else []
    lines += ["from PIL import Image"] if kind == "vision" else []
    lines += ["from peft import PeftConfig, PeftModel"] if adapter else []
    lines += [f"from transformers import {', '.join(sorted(imports))}", ""]
    lines += ['here = "."  # this directory, or its name on the Hub']
    trust = ", trust_remote_code=True" if result.own_code else ""
    lines += [f"processor = AutoProcessor.from_pretrained(here{trust})"] if kind == "vision" else []
    lines += [f"tokenizer = AutoTokenizer.from_pretrained(here{trust})"] if kind != "vision" else []
    lines += [_FOUR_BITS.format(dtype=result.dtype or "bfloat16")] if packed else []
    options = [f"dtype=torch.{result.dtype}" if packed and result.dtype else 'dtype="auto"']
    options += ["quantization_config=four_bits"] if packed else []
    if kind == "classifier" and adapter and result.labels:
        lines += [f"labels = {list(result.labels)!r}"]
        # The base may be a classifier of other classes: its head's weights are the adapter's.
        options += ["num_labels=len(labels)", "id2label=dict(enumerate(labels))", "ignore_mismatched_sizes=True"]
    options += ["trust_remote_code=True"] if result.own_code else []
    options += [f"revision={result.revision!r}"] if adapter and result.revision is not None else []
    source = "PeftConfig.from_pretrained(here).base_model_name_or_path" if adapter else "here"
    lines += [f"base = {source}"] if adapter else []
    lines += [f"model = {_CLASSES[kind]}.from_pretrained({'base' if adapter else 'here'}, {', '.join(options)})"]
    lines += (
        ["model.generation_config = GenerationConfig.from_pretrained(here)  # what ends a reply"] if own_ends else []
    )
    lines += ["model = PeftModel.from_pretrained(model, here)"] if adapter else []
    lines += ["model.eval()", ""]
    if kind == "classifier":
        cut = "" if result.max_length is None else f", truncation=True, max_length={result.max_length}"
        return "\n".join([*lines, _CLASSIFY.format(cut=cut)])
    more = f", **{dict(result.template_kwargs)!r}" if result.template_kwargs else ""
    raw = "\n".join([_TEXT, *([_UNENDED.format(count=result.ends_of_text)] if result.ends_of_text else [])])
    question = _PICTURE.format(more=more) if kind == "vision" else _CHAT.format(more=more) if result.is_chat else raw
    return "\n".join([*lines, question, _WRITE.format(reader="processor" if kind == "vision" else "tokenizer")])


def commands(result: Loading, *, base: str, name: str, rank: int | None) -> str:
    """What asks a result and serves it; `rank` of an adapter that a server takes as it is, else None. "" where nothing
    here asks it: without its run, code of a model's own is not run."""
    kind, form, own_code, template_kwargs = result.kind, result.form, result.own_code, result.template_kwargs
    alone = own_code and form == "merged"
    if kind == "classifier":
        return "" if alone else 'rankzero predict . --text "a text"'
    ask = "" if alone else 'rankzero generate . "What is the capital of Peru?"\n'
    told = " --trust-remote-code" if own_code else ""
    told += f" --default-chat-template-kwargs {quote(json.dumps(dict(template_kwargs)))}" if template_kwargs else ""
    if form != "adapter":
        return f"{ask}vllm serve . --served-model-name {name}{told}"
    if rank is None:
        return f"{ask}rankzero merge . -o ../merged"
    room = next((size for size in _LORA_RANKS if size >= rank), rank)
    which = "" if result.revision is None else f" --revision {quote(result.revision)}"
    own = "--tokenizer . --generation-config ."  # the template and the ends of replies that were trained with
    lora = f"--enable-lora --max-lora-rank {room} --lora-modules {name}=."
    return f"{ask}vllm serve {base}{which} {own} {lora}{told}"
