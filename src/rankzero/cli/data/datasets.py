"""`rankzero data fire` and `rankzero data volcano`: parse, call, print. Imports the data side inside the commands.

Flags can be written with underscores or with dashes. MAX_SAMPLES, MAX_HISTORY_ROUNDS, FIRE_INPUT and VOLCANO_INPUT are
their defaults from the environment, as a Job sets them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rankzero.api.installed import require_data
from rankzero.errors import Problem, RankzeroError, UsageError
from rankzero.wording import named_keys

if TYPE_CHECKING:
    from rankzero.datasets.frame import FrameSettings, Recipe

OutputDir = Annotated[Path, typer.Option("--output_dir", "--output-dir", help="Where rows and stats.json are written.")]
ImageDir = Annotated[
    Path,
    typer.Option(
        "--image_dir", "--image-dir", help="Where images are looked for first (coco/train2017/…), and brought to."
    ),
]
MaxSamples = Annotated[
    int,
    typer.Option(
        "--max_samples", "--max-samples", min=0, envvar="MAX_SAMPLES", help="Raw rows of each split; 0: all of them."
    ),
]
SkipImages = Annotated[
    bool, typer.Option("--skip-images", "--skip_images", help="Look for no image; rows keep the paths of the raw data.")
]
Images = Annotated[
    list[str] | None,
    typer.Option(
        "--images",
        metavar="[SOURCE=]PLACE",
        help="Where images are taken from: a folder, .tar, .zip or .parquet, or hub:org/name (downloads). With a "
        "source, names stand below its folder: coco=train2017.zip. May be given several times.",
    ),
]
ImageModeOption = Annotated[
    Literal["copy", "link", "none"],
    typer.Option(
        "--image-mode", "--image_mode", help="Of images in a folder: copy, hard link, or use what is in image_dir."
    ),
]
ImageCheck = Annotated[
    bool, typer.Option("--image-check/--no-image-check", help="Decode every image; use none that cannot be decoded.")
]
_MOST_PIXELS = 64_000_000
"""What training decodes (`MAX_PIXELS` of data/images/decode.py, whose module this one does not import)."""
MaxPixels = Annotated[
    int,
    typer.Option(
        "--max-pixels",
        "--max_pixels",
        min=1,
        max=_MOST_PIXELS,
        help="Of an image; more is not decoded. Training decodes no more than the default.",
    ),
]
EvalFraction = Annotated[
    float,
    typer.Option("--eval-fraction", "--eval_fraction", min=0, max=0.9, help="Hold out this share of train, by image."),
]
Seed = Annotated[int, typer.Option("--seed", help="Decides what is held out.")]
Workers = Annotated[int | None, typer.Option("--workers", min=1, help="Processes that decode images.")]

_INPUT_HELP = "Raw JSON: [SPLIT=]FILE, a folder or a URL; absent: the data set on the Hub. May be given several times."


def fire(
    output_dir: OutputDir,
    image_dir: ImageDir,
    max_samples: MaxSamples = 0,
    splits: Annotated[
        list[str] | None, typer.Option("--splits", help="train, test or both (train,test); absent: all there are.")
    ] = None,
    skip_images: SkipImages = False,
    raw: Annotated[list[str] | None, typer.Option("--input", envvar="FIRE_INPUT", help=_INPUT_HELP)] = None,
    max_history_rounds: Annotated[
        int,
        typer.Option(
            "--max-history-rounds",
            "--max_history_rounds",
            min=0,
            envvar="MAX_HISTORY_ROUNDS",
            help="Attempts in a state at most, the latest ones.",
        ),
    ] = 6,
    skip_first: Annotated[
        bool, typer.Option("--skip-first", "--skip_first", help="Do not clone first attempts.")
    ] = False,
    min_score: Annotated[
        int | None, typer.Option("--min-score", "--min_score", help="Clone attempts with at least this score.")
    ] = None,
    final_only: Annotated[
        bool, typer.Option("--final-only", "--final_only", help="Clone the last attempt of each trajectory alone.")
    ] = False,
    shape: Annotated[
        Literal["flattened", "multi-turn"], typer.Option("--shape", help="One text for the state, or chat turns.")
    ] = "flattened",
    raw_feedback: Annotated[
        bool, typer.Option("--raw-feedback", "--raw_feedback", help="Show the student the score as well.")
    ] = False,
    images: Images = None,
    image_mode: ImageModeOption = "copy",
    image_check: ImageCheck = True,
    max_pixels: MaxPixels = _MOST_PIXELS,
    eval_fraction: EvalFraction = 0.0,
    seed: Seed = 42,
    workers: Workers = None,
) -> None:
    """Turn FIRE trajectories into behaviour-cloning rows.

    One for each time step. State: the image, the question, the latest attempts with the feedback on them. Action: the
    next attempt. Writes fire_bc_SPLIT.jsonl and stats.json.

    Without --input the raw rows are fetched from the Hub. No image is fetched unless --images says so.
    """
    require_data()
    from rankzero.datasets import fire as recipe
    from rankzero.datasets.frame import Recipe

    settings = _settings(
        output_dir,
        image_dir,
        max_samples,
        skip_images,
        eval_fraction,
        seed,
        image_mode,
        image_check,
        max_pixels,
        workers,
    )
    policy = recipe.FirePolicy(max_history_rounds, skip_first, min_score, final_only, shape, raw_feedback)
    convert = partial(recipe.convert, policy=policy)
    frame = Recipe("fire", recipe.FILE_NAME, convert, needs_image=True, reads=recipe.READS, choices=asdict(policy))
    _run(frame, raw or [], _names(splits), recipe.HUB_ID, settings, images or [])


def volcano(
    output_dir: OutputDir,
    image_dir: ImageDir,
    max_samples: MaxSamples = 0,
    split: Annotated[str, typer.Option("--split", help="Names the output.")] = "train",
    skip_images: SkipImages = False,
    raw: Annotated[list[str] | None, typer.Option("--input", envvar="VOLCANO_INPUT", help=_INPUT_HELP)] = None,
    images: Images = None,
    image_mode: ImageModeOption = "copy",
    image_check: ImageCheck = True,
    max_pixels: MaxPixels = _MOST_PIXELS,
    eval_fraction: EvalFraction = 0.0,
    seed: Seed = 42,
    workers: Workers = None,
) -> None:
    """Turn Volcano's raw rows into chat rows.

    Critique, revise and decide rows are counted, text-only rows kept. Writes volcano_SPLIT.jsonl and stats.json.

    Without --input the raw rows are fetched from the Hub. No image is fetched unless --images says so.
    """
    require_data()
    from rankzero.datasets import volcano as recipe
    from rankzero.datasets.frame import Recipe

    settings = _settings(
        output_dir,
        image_dir,
        max_samples,
        skip_images,
        eval_fraction,
        seed,
        image_mode,
        image_check,
        max_pixels,
        workers,
    )
    frame = Recipe("volcano", recipe.FILE_NAME, recipe.convert, needs_image=False, reads=recipe.READS)
    _run(frame, raw or [], _names([split]), recipe.HUB_ID, settings, images or [])


def _settings(
    output_dir: Path,
    image_dir: Path,
    max_samples: int,
    skip_images: bool,
    eval_fraction: float,
    seed: int,
    image_mode: Literal["copy", "link", "none"],
    image_check: bool,
    max_pixels: int,
    workers: int | None,
) -> FrameSettings:
    from rankzero.data.images.decode import ImageLimits
    from rankzero.datasets.frame import FrameSettings
    from rankzero.datasets.images.resolve import ImageSettings

    how = ImageSettings(image_mode, image_check, ImageLimits(max_pixels), workers)
    return FrameSettings(output_dir, image_dir, max_samples, skip_images, eval_fraction, seed, how)


def _run(
    recipe: Recipe,
    raw: Sequence[str],
    splits: Sequence[str],
    hub_id: str,
    settings: FrameSettings,
    images: Sequence[str],
) -> None:
    from rankzero.cli.undoing import undone_where_stopped
    from rankzero.datasets.frame import run
    from rankzero.datasets.images.stores import open_store
    from rankzero.datasets.raw import find_inputs
    from rankzero.run_dir.atomic import place_given_by

    if images and settings.skip_images:
        raise UsageError("--images and --skip-images contradict each other", hint="leave one of them out")
    if images and settings.images.mode == "none":
        hint = "none uses what is in --image_dir; copy or link brings images there"
        raise UsageError("--images needs --image-mode copy or link", hint=hint)
    stores = [open_store(text) for text in images]
    inputs = find_inputs(raw, splits, hub_id) if raw else _from_hub(splits, hub_id)
    with undone_where_stopped(), place_given_by("--output_dir (images: --image_dir)"):
        stats = run(recipe, inputs, settings, stores, partial(typer.echo, err=True))
    typer.echo(_summary(stats, settings))


def _from_hub(splits: Sequence[str], hub_id: str) -> dict[str, tuple[str, ...]]:
    """The data set's own files, where nothing else is named. Raises as `find_inputs` does."""
    from rankzero.datasets.raw import find_inputs

    typer.echo(f"no --input: taking {hub_id} from the Hub", err=True)
    try:
        return find_inputs(["hub"], splits, hub_id)
    except RankzeroError as error:
        hint = "--input FILE, a folder or a URL takes a copy instead"
        raise type(error)(Problem(p.what, p.where, f"{p.hint}; {hint}") for p in error.problems) from error


def _summary(stats: dict[str, Any], settings: FrameSettings) -> str:
    lines = []
    for split, counts in stats["splits"].items():
        files = ", ".join(f"{rows:,} in {settings.output_dir / name}" for name, rows in counts["written"].items())
        lines.append(f"{split}: {counts['rows_in']:,} raw rows -> {counts['rows_out']:,} training rows ({files})")
        for what, unit in (("rows_dropped", "raw rows dropped"), ("steps_dropped", "steps left out")):
            if dropped := counts.get(what):
                rules = ", ".join(f"{count:,} {rule}" for rule, count in dropped.items())
                lines.append(f"  {unit}: {rules}")
        if unread := counts["keys_not_read"]:
            lines.append(f"  keys that are not read: {', '.join(named_keys(unread))}")
        if kinds := counts.get("kinds"):
            lines.append("  kinds: " + ", ".join(f"{count:,} {kind}" for kind, count in kinds.items()))
        for source, images in counts["images"].get("sources", {}).items():
            lost = ", ".join(f"{count:,} {reason}" for reason, count in images.get("lost", {}).items())
            examples = f" (such as {images['examples'][0]})" if lost else ""
            lines.append(
                f"  {source}: {images['found']:,} of {images['images']:,} images"
                + (f"; {lost}{examples}" if lost else "")
            )
    lines += _shared(stats)
    first = next(name for counts in stats["splits"].values() for name in counts["written"])
    lines.append(f"statistics: {settings.output_dir / 'stats.json'}")
    lines.append(
        f"in run.yaml: data.train: [{{path: {settings.output_dir / first}, image_root: {settings.image_dir}}}]"
    )
    return "\n".join(lines)


def _shared(stats: dict[str, Any]) -> list[str]:
    """What is to be known of images that are in several splits, or on both sides of a hold-out."""
    lines, shared = [], stats["images_in_several_splits"]
    if shared:
        lines.append(f"images that are in several splits: {shared:,}")
    sides = len(stats["splits"]) + bool(stats["choices"]["eval_fraction"])
    if sides > 1 and stats["images_compared"] == "by name":
        lines.append("images were not read, so one picture under two names may be on both sides")
    return lines


def _names(values: Sequence[str] | None) -> list[str]:
    """`train,test` or the flag several times."""
    names = [name for value in values or () for name in value.replace(",", " ").split()]
    for name in names:
        if not name.replace("_", "").isalnum():
            raise UsageError(f"{name!r} cannot be a split", where="--splits")
    return list(dict.fromkeys(names))
