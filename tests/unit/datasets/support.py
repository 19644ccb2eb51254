"""Synthetic raw rows of the recipes."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

Turns = list[tuple[str, str]]


def fire_row(
    name: str, image: str | None, turns: Turns, question: str = "What is it?", truth: str = ""
) -> dict[str, Any]:
    """The shape with role, type and value; turns are ("s", attempt) and ("t", feedback)."""
    row: dict[str, Any] = {
        "id": name,
        "question": {"value": question},
        "groundtruth": {"value": truth},
        "conversations": [
            {"role": "student", "type": "response", "value": text}
            if speaker == "s"
            else {"role": "teacher", "type": "feedback", "value": text}
            for speaker, text in turns
        ],
    }
    return row if image is None else row | {"image": image}


def llava_row(name: str, image: str, turns: Turns, question: str = "What is it?", truth: str = "") -> dict[str, Any]:
    """The same in the shape of from and value."""
    said = [{"from": "gpt" if speaker == "s" else "human", "value": text} for speaker, text in turns]
    asked = {"from": "human", "value": f"<image>\n{question}"}
    raw = {"question": {"value": question}, "groundtruth": {"value": truth}}
    return {"id": name, "image": image, "conversations": [asked, *said], "raw": raw}


def trajectory(rounds: int, start: int = 1) -> Turns:
    """Attempts with numbered texts, feedback with scores that rise."""
    turns: Turns = []
    for number in range(start, start + rounds):
        turns += [("s", f"Thought: t{number}.\nAnswer: a{number}\n\n")]
        turns += [("t", f"Score: {min(10, number)}.\nFeedback: f{number}\n")]
    return turns


def many_fire_rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Trajectories of 1 to 9 rounds in both shapes, several on one image, some without their last feedback."""
    chance = random.Random(seed)
    rows = []
    for index in range(count):
        turns = trajectory(chance.randint(1, 9))
        if chance.random() < 0.3:
            turns = turns[:-1]
        number = chance.randrange(count // 3 + 1)
        split = chance.choice(["train2017/{:012d}", "val2014/COCO_val2014_{:012d}"])
        image = f"coco/{split.format(number)}.jpg" if chance.random() < 0.7 else f"gqa/images/{number}.jpg"
        make = fire_row if chance.random() < 0.7 else llava_row
        rows.append(make(f"r{index}", image, turns, f"Question {index}?", f"SECRET{index}TRUTH"))
    return rows


def write_array(path: Path, rows: list[dict[str, Any]]) -> str:
    """One JSON array, as the data sets come."""
    path.write_text(json.dumps(rows, ensure_ascii=False), encoding="utf-8")
    return str(path)


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSON lines file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
