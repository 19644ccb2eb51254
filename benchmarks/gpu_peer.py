"""The peer, as a process: TRL's SFTTrainer, transformers' Trainer (no TRL, or images), or Unsloth.

    python benchmarks/gpu_peer.py TASK.json        trains; writes steps.jsonl and peer.json where the task says
    python benchmarks/gpu_peer.py --probe          prints what is installed

Its best flags: bfloat16 weights under adapters, the fused optimizer, SDPA or flash-attention where installed, Liger's
layers and loss where installed, rows of like length in a pass (TRL with flash-attention: packed rows instead; Unsloth:
rows end to end), and activations recomputed only where they have to be. Does not need rankzero.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PACKAGES = (
    "torch",
    "transformers",
    "peft",
    "accelerate",
    "trl",
    "bitsandbytes",
    "flash_attn",
    "liger-kernel",
    "pillow",
    "unsloth",
    "xformers",
)
IGNORED = -100
IMAGE_TOKEN_PIXELS = 32 * 32


def installed() -> dict[str, str]:
    """Versions of what matters and is there."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def text_rows(task: dict[str, Any], tokenizer: Any) -> list[dict[str, Any]]:
    """Token ids and labels of the answers, of every row."""
    rows = []
    for line in Path(task["rows"]).read_text(encoding="utf-8").splitlines():
        messages = json.loads(line)["messages"]
        prompt = tokenizer.apply_chat_template(messages[:1], add_generation_prompt=True, tokenize=False)
        whole = tokenizer.apply_chat_template(messages, tokenize=False)
        asked, ids = tokenizer(prompt)["input_ids"], tokenizer(whole)["input_ids"][: task["max_length"]]
        rows.append({"input_ids": ids, "labels": [IGNORED] * len(asked) + ids[len(asked) :]})
    return rows


def picture_rows(task: dict[str, Any]) -> list[dict[str, Any]]:
    """Messages and image files. Tokens are made with the pixels, a pass at a time: `input_ids` only tell the length."""
    from PIL import Image

    folder, rows = Path(task["rows"]).parent, []
    for line in Path(task["rows"]).read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        file = folder / row["images"][0]
        with Image.open(file) as picture:
            length = picture.width * picture.height // IMAGE_TOKEN_PIXELS
        length += sum(len(message["content"].split()) for message in row["messages"])
        rows.append({"messages": row["messages"], "image": str(file), "input_ids": [0] * length})
    return rows


class Padded:
    """A pass of text rows, filled up to the longest."""

    def __init__(self, pad: int) -> None:
        self.pad = pad

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        import torch

        longest = max(len(row["input_ids"]) for row in rows)

        def filled(key: str, value: int) -> torch.Tensor:
            return torch.tensor([[*row[key], *[value] * (longest - len(row[key]))] for row in rows])

        lengths = torch.tensor([len(row["input_ids"]) for row in rows])
        mask = (torch.arange(longest) < lengths[:, None]).long()
        return {"input_ids": filled("input_ids", self.pad), "labels": filled("labels", IGNORED), "attention_mask": mask}


class Pictured(Padded):
    """A pass of rows with an image each: pixels, and as many placeholders as they have merged patches."""

    def __init__(self, tokenizer: Any, images: Any) -> None:
        super().__init__(tokenizer.pad_token_id)
        self.tokenizer, self.images = tokenizer, images

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        import torch
        from PIL import Image

        pixels = self.images(images=[Image.open(row["image"]).convert("RGB") for row in rows], return_tensors="pt")
        merged = self.images.merge_size**2
        counts = [int(grid.prod()) // merged for grid in pixels["image_grid_thw"]]
        batch = super().__call__(
            [self._tokens(row["messages"], count) for row, count in zip(rows, counts, strict=True)]
        )
        placeholder = self.tokenizer.convert_tokens_to_ids("<|image_pad|>")
        batch["mm_token_type_ids"] = (batch["input_ids"] == placeholder).to(torch.int64)
        return {**batch, **pixels}

    def _tokens(self, messages: list[dict[str, str]], count: int) -> dict[str, Any]:
        shown = "<|vision_start|>" + "<|image_pad|>" * count + "<|vision_end|> "
        turns = [{**turn, "content": turn["content"].replace("<image>", shown)} for turn in messages]
        prompt = self.tokenizer.apply_chat_template(turns[:1], add_generation_prompt=True, tokenize=False)
        asked = self.tokenizer(prompt)["input_ids"]
        ids = self.tokenizer(self.tokenizer.apply_chat_template(turns, tokenize=False))["input_ids"]
        return {"input_ids": ids, "labels": [IGNORED] * len(asked) + ids[len(asked) :]}


def load_model(task: dict[str, Any], attention: str) -> Any:
    """Frozen weights in the precision that is computed in, trained ones in float32."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    kind = AutoModelForImageTextToText if task["images"] else AutoModelForCausalLM
    half = task["adapters"] is not None and not task["cpu"]
    model = kind.from_pretrained(
        task["model"], dtype=torch.bfloat16 if half else torch.float32, attn_implementation=attention
    )
    model.config.use_cache = False
    return model


def lora_config(task: dict[str, Any]) -> Any:
    """The same adapters as rankzero's: on the text model's linear layers."""
    from peft import LoraConfig

    given = task["adapters"]
    return LoraConfig(
        task_type="CAUSAL_LM",
        r=given["r"],
        lora_alpha=given["alpha"],
        lora_dropout=given["dropout"],
        target_modules=given["target_modules"],
        exclude_modules=r".*visual.*" if task["images"] else None,
    )


def arguments(task: dict[str, Any]) -> dict[str, Any]:
    """What both trainers are told."""
    return {
        "output_dir": task["output"],
        "max_steps": task["steps"],
        "per_device_train_batch_size": task["rows_per_pass"],
        "gradient_accumulation_steps": task["batch"] // task["rows_per_pass"],
        "gradient_checkpointing": task["recompute"],
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
        "use_liger_kernel": task["liger"],
        "bf16": not task["cpu"],
        "use_cpu": task["cpu"],
        "optim": "adamw_torch_fused",
        "learning_rate": 1e-4,
        "lr_scheduler_type": "constant",
        "train_sampling_strategy": "group_by_length",
        "remove_unused_columns": False,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "seed": 42,
    }


def measured(trainer_class: Any) -> Any:
    """The trainer, with a line in steps.jsonl for each step: when it ended, useful tokens, loss."""
    import torch

    class Measured(trainer_class):  # type: ignore[misc]
        tokens: Any = 0

        def training_step(self, model: Any, inputs: dict[str, Any], *rest: Any, **named: Any) -> Any:
            mask = inputs.get("attention_mask")
            # A sum that stays on the device: asking for the number would make the GPU wait.
            self.tokens = self.tokens + (mask.sum() if mask is not None else inputs["input_ids"].numel())
            return super().training_step(model, inputs, *rest, **named)

        def log(self, logs: dict[str, float], *rest: Any, **named: Any) -> None:
            super().log(logs, *rest, **named)
            if "loss" not in logs:
                return
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            line = {"time": time.time(), "tokens": int(self.tokens), "loss": float(logs["loss"])}
            with Path(self.args.output_dir, "steps.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            self.tokens = 0

    return Measured


def make_trainer(task: dict[str, Any]) -> tuple[Any, str]:
    """The trainer, and its choices in words."""
    if task["unsloth"]:
        return _unsloth(task)
    from transformers import AutoImageProcessor, AutoTokenizer, Trainer, TrainingArguments

    tokenizer = AutoTokenizer.from_pretrained(task["model"])
    flash = find_spec("flash_attn") is not None and not task["cpu"]
    attention = "flash_attention_2" if flash else "sdpa"
    if find_spec("trl") is not None and not task["images"]:
        return _trl(task, tokenizer, attention, packing=flash)
    model = load_model(task, attention)
    if task["adapters"] is not None:
        from peft import get_peft_model

        model = get_peft_model(model, lora_config(task))
        model.enable_input_require_grads()
    if task["images"]:
        rows = picture_rows(task)
        collator: Any = Pictured(tokenizer, AutoImageProcessor.from_pretrained(task["model"], backend="pil"))
    else:
        rows, collator = text_rows(task, tokenizer), Padded(tokenizer.pad_token_id)
    made = measured(Trainer)(model, TrainingArguments(**arguments(task)), data_collator=collator, train_dataset=rows)
    return made, f"{attention}, padded, rows of like length in a pass"


def _trl(task: dict[str, Any], tokenizer: Any, attention: str, *, packing: bool) -> tuple[Any, str]:
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    rows = text_rows(task, tokenizer)
    told = arguments(task)
    if packing:
        told["train_sampling_strategy"] = "random"
    trainer = measured(SFTTrainer)(
        load_model(task, attention),
        args=SFTConfig(**told, max_length=task["max_length"], packing=packing, shuffle_dataset=False),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        peft_config=lora_config(task) if task["adapters"] is not None else None,
    )
    return trainer, f"{attention}, " + ("packed" if packing else "padded, rows of like length in a pass")


def _unsloth(task: dict[str, Any]) -> tuple[Any, str]:
    """Its own layers, losses and adapters' products; the trainer is TRL's, changed by it."""
    os.environ |= {"UNSLOTH_COMPILE_LOCATION": f"{task['output']}/compiled", "UNSLOTH_DISABLE_STATISTICS": "1"}
    from unsloth import FastLanguageModel  # before all that it changes

    # isort: split
    import torch
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    given, recomputing = task["adapters"], "unsloth" if task["recompute"] else False
    model, tokenizer = FastLanguageModel.from_pretrained(
        task["model"],
        max_seq_length=task["max_length"],
        dtype=torch.bfloat16,
        load_in_4bit=task["quantized"],
        use_gradient_checkpointing=recomputing,
    )
    model = FastLanguageModel.get_peft_model(
        model,
        r=given["r"],
        lora_alpha=given["alpha"],
        lora_dropout=given["dropout"],
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        use_gradient_checkpointing=recomputing,
    )
    told = arguments(task) | {"train_sampling_strategy": "random"}
    trainer = measured(SFTTrainer)(
        model,
        args=SFTConfig(**told, max_length=task["max_length"], padding_free=True),
        train_dataset=Dataset.from_list(text_rows(task, tokenizer)),
        processing_class=tokenizer,
    )
    return trainer, "rows end to end"


def main() -> None:
    if sys.argv[1] == "--probe":
        print(json.dumps(installed()))
        return
    task = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    import torch

    trainer, choices = make_trainer(task)
    trainer.train()
    peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    if not peak:
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    choices += f", {task['rows_per_pass']} rows a pass" + (", recomputing" if task["recompute"] else "")
    facts = {"peak_memory_bytes": peak, "choices": choices}
    Path(task["output"], "peer.json").write_text(json.dumps(facts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
