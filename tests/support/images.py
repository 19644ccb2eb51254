"""Images drawn by tests, and rows about them: a model can learn what they show."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

COLOURS = {"red": (210, 30, 30), "green": (30, 160, 60), "blue": (40, 60, 200), "yellow": (230, 210, 40)}
SHAPES = ("square", "circle")


def draw(path: Path, colour: str, shape: str = "square", size: tuple[int, int] = (64, 64)) -> Path:
    """A shape in this colour on white; `size` is width, height."""
    from PIL import Image, ImageDraw

    picture = Image.new("RGB", size, "white")
    box = [size[0] // 8, size[1] // 8, size[0] * 7 // 8, size[1] * 7 // 8]
    pen = ImageDraw.Draw(picture)
    (pen.ellipse if shape == "circle" else pen.rectangle)(box, fill=COLOURS[colour])
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.save(path)
    return path


def draw_many(root: Path, names: Sequence[str]) -> dict[str, str]:
    """An image under each name, of varied colours, shapes and sizes. Returns the colours by name."""
    colours = list(COLOURS)
    shown = {name: colours[i % len(colours)] for i, name in enumerate(names)}
    for i, name in enumerate(names):
        draw(root / name, shown[name], SHAPES[i % 2], size=(48 + 16 * (i % 4), 64 + 32 * (i % 2)))
    return shown


def picture_rows(root: Path, count: int, *, every: int = 1, prefix: str = "") -> list[dict[str, Any]]:
    """`count` short chats; each `every`th is about an image below `root`, the others have none."""
    names = [f"{prefix}{i}.png" for i in range(count)]
    shown = draw_many(root, names[::every])
    rows: list[dict[str, Any]] = []
    for i, name in enumerate(names):
        question = "Which colour is it?" + " Tell me." * (i % 3)
        if name in shown:
            turns = [("user", f"<image>{question}"), ("assistant", f"It is {shown[name]}.")]
            rows.append({"images": [name], "messages": [{"role": role, "content": text} for role, text in turns]})
        else:
            turns = [("user", question), ("assistant", "There is no picture, so I cannot say.")]
            rows.append({"messages": [{"role": role, "content": text} for role, text in turns]})
    return rows
