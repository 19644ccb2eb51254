"""Names and places inside a run directory, and its two links. Knows no file's content."""

from __future__ import annotations

import errno
import os
import re
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rankzero.run_dir.atomic import fsync_path, not_read_errors, storage_errors

LinkName = Literal["best", "last"]
LINKS: tuple[LinkName, ...] = ("best", "last")
MERGE = "merge.json"
"""How far a merged model is from base and adapter: in the merged model's directory, and in its run's."""
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")
"""Any one of them is a tokenizer."""
_OF_A_RUN = (
    *LINKS,
    *("checkpoints", "final", "logs", "events", "tracking", "lease.json", ".lease.lock"),
    *("environment.json", "data.json", "report.json", "report.html", "eval.json", "goodput.json", "error.json"),
    *("metrics.jsonl", "samples.jsonl", "saves.jsonl", "starts.jsonl", "restarts.jsonl"),
)
"""Any of them is there from before its run.yaml to the end, and in no other directory."""
_WRITTEN = ("run.yaml", *_OF_A_RUN, "deepspeed.json", "pass-limit.json", MERGE, "stop", ".eval.lock")
"""All that a run writes or removes here; also what has such a name elsewhere, and says of no directory that it is a
run's."""
_HELD = ("lease.json", "environment.json")
_STEP = re.compile(r"step-(\d{1,18})")
_ASIDE = "damaged-"


def has_tokenizer(directory: Path) -> bool:
    """Whether there is a tokenizer beside the weights in a directory."""
    return any((directory / name).is_file() for name in TOKENIZER_FILES)


def _is_directory(entry: os.DirEntry[str]) -> bool:
    """A link that leads nowhere, or round and round, is none. Raises OSError of what cannot be looked at."""
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            return False
        raise


@dataclass(frozen=True, slots=True)
class RunDir:
    """`<output_dir>/<name>/`; every path of the contract, none of them created by naming it."""

    root: Path

    @property
    def has_more_than_spec(self) -> bool:
        """Whether there is anything that a run writes beside its run.yaml."""
        return any(os.path.lexists(self.root / name) for name in _OF_A_RUN)

    def writes(self, path: str) -> bool:
        """Whether a path is that of a file which a run writes here."""
        place, name = os.path.split(os.path.realpath(path))
        return name in _WRITTEN and place == os.path.realpath(self.root)

    def not_its_own(self) -> list[Path]:
        """What lies here though no run has been here, and would be written over by one."""
        if any(os.path.lexists(self.root / name) for name in _HELD):
            return []
        return [path for name in _WRITTEN if os.path.lexists(path := self.root / name)]

    @property
    def spec(self) -> Path:
        return self.root / "run.yaml"

    @property
    def environment(self) -> Path:
        return self.root / "environment.json"

    @property
    def deepspeed(self) -> Path:
        """What DeepSpeed is configured with, where it has a part in the run."""
        return self.root / "deepspeed.json"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics.jsonl"

    @property
    def events(self) -> Path:
        return self.root / "events"

    @property
    def saves(self) -> Path:
        """One object for each checkpoint that was committed: its step, and when (Unix seconds)."""
        return self.root / "saves.jsonl"

    @property
    def tracking(self) -> Path:
        """What trackers' servers have of the run, a file each."""
        return self.root / "tracking"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def final(self) -> Path:
        return self.root / "final"

    @property
    def report(self) -> Path:
        return self.root / "report.json"

    @property
    def error(self) -> Path:
        """Why the last start failed, in the form of run_dir/handover.py; the next start removes it."""
        return self.root / "error.json"

    @property
    def data(self) -> Path:
        """What the run's rows are: how many, what was left out, their lengths. Made by engine/inputs.py."""
        return self.root / "data.json"

    @property
    def samples(self) -> Path:
        """What the model wrote when it was asked: an object a line, {"step", "prompt", "text"}; step 0 is before the
        first one."""
        return self.root / "samples.jsonl"

    @property
    def evaluation(self) -> Path:
        """What `rankzero eval` has measured of the result: by data set and task, before training and after."""
        return self.root / "eval.json"

    @property
    def evaluation_lock(self) -> Path:
        """Held while `evaluation` changes, and while a result takes the place of the one that it is about."""
        return self.root / ".eval.lock"

    @property
    def page(self) -> Path:
        """All of the run to look at, in one file."""
        return self.root / "report.html"

    @property
    def merge(self) -> Path:
        """Of the last model that was merged from the run: where it is, and how far it is from base and adapter. Empty
        where the result is another one since."""
        return self.root / MERGE

    @property
    def stop_flag(self) -> Path:
        """A file whose appearance asks the run to stop and save, as SIGTERM does (a preStop hook touches it)."""
        return self.root / "stop"

    def log(self, rank: int) -> Path:
        return self.root / "logs" / f"rank-{rank}.log"

    def logs(self) -> list[Path]:
        """The logs of all ranks, by their number: also of those that a start with more processes had."""
        return sorted((self.root / "logs").glob("rank-*.log"), key=lambda path: (len(path.name), path.name))

    def hang(self, step: int) -> Path:
        """Where the ranks' stacks are kept of a step that did not end."""
        return self.root / "logs" / f"hang-step-{step}"

    @property
    def restarts(self) -> Path:
        """One object for each time that a launcher started the run again by itself: when, from where, and why."""
        return self.root / "restarts.jsonl"

    @property
    def starts(self) -> Path:
        """Where the time of each start goes; run_dir/goodput.py has what is in it."""
        return self.root / "starts.jsonl"

    @property
    def goodput(self) -> Path:
        return self.root / "goodput.json"

    @property
    def pass_limit(self) -> Path:
        """How small passes had to become, where one ran out of memory."""
        return self.root / "pass-limit.json"

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step-{step}"

    def is_checkpoint(self, directory: Path) -> bool:
        """Whether a directory has the name and the place of a committed checkpoint."""
        return directory.parent == self.checkpoints and _STEP.fullmatch(directory.name) is not None

    def committed_steps(self) -> list[int]:
        """Steps that have a checkpoint directory under its final name, newest first. Says nothing of their content.
        Raises NotReadError where it cannot be seen which there are: none would be a run that begins."""
        with not_read_errors(self.checkpoints):
            try:
                with os.scandir(self.checkpoints) as entries:
                    named = [(match, entry) for entry in entries if (match := _STEP.fullmatch(entry.name))]
            except (FileNotFoundError, NotADirectoryError):
                return []
            return sorted((int(match.group(1)) for match, entry in named if _is_directory(entry)), reverse=True)

    def set_aside(self, step: int) -> Path:
        """Take a damaged checkpoint out of what is counted, pruned and continued from; its bytes stay for whoever
        wants to look. Returns where it is now. Raises StorageError."""
        damaged = self.checkpoints / f"{_ASIDE}step-{step}"
        with storage_errors(damaged):
            shutil.rmtree(damaged, ignore_errors=True)  # an older one of the same step
            self.checkpoint(step).rename(damaged)
            for name in LINKS:
                link = self.root / name
                if self.read_link(name) is None and (link.is_symlink() or link.is_file()):
                    link.unlink()
        return damaged

    def steps_set_aside(self) -> set[int]:
        """Steps of damaged checkpoints that were taken out of what is counted."""
        matches = (_STEP.fullmatch(path.name.removeprefix(_ASIDE)) for path in self.checkpoints.glob(f"{_ASIDE}*"))
        return {int(match.group(1)) for match in matches if match}

    def steps_left_aside(self) -> set[int]:
        """The same, without those that have a checkpoint again. Raises NotReadError."""
        return self.steps_set_aside().difference(self.committed_steps())

    def make_way_for_links(self) -> list[Path]:
        """Rename directories that stand where the links belong, as a copy that follows links makes them: a save would
        only fail there. Returns where they are now. Raises StorageError."""
        moved = []
        for name in LINKS:
            link = self.root / name
            if link.is_dir() and not link.is_symlink():
                copied = self.root / f"{name}-copied-{uuid.uuid4().hex[:8]}"
                with storage_errors(copied):
                    link.rename(copied)
                moved.append(copied)
        return moved

    def set_link(self, name: LinkName, step: int) -> None:
        """Point `best` or `last` at a checkpoint: a relative symlink, or a pointer file where there are none."""
        link, target = self.root / name, os.path.relpath(self.checkpoint(step), self.root)
        staged = self.root / f".tmp-{name}-{uuid.uuid4().hex}"
        with storage_errors(link):
            try:
                staged.symlink_to(target)
            except (OSError, NotImplementedError):
                staged.write_text(target + "\n", encoding="utf-8")
                fsync_path(staged)
            os.replace(staged, link)

    def point_to_best(self, step: int | None) -> None:
        """Point `best` at this step's checkpoint, or at none. One whose checkpoint is lost is left as it is."""
        if step is None:
            self.drop_link("best")
        elif self.checkpoint(step).is_dir():
            self.set_link("best", step)

    def drop_link(self, name: LinkName) -> None:
        """Nothing is `best` or `last` any more."""
        with storage_errors(self.root / name):
            (self.root / name).unlink(missing_ok=True)

    def read_link(self, name: LinkName) -> int | None:
        """The step that `best` or `last` points at; None where it points nowhere."""
        link = self.root / name
        if link.is_symlink():
            target = os.readlink(link)
        elif link.is_file():
            target = link.read_text(encoding="utf-8", errors="replace").strip()
        else:
            return None
        match = _STEP.fullmatch(Path(target).name)
        return int(match.group(1)) if match and self.checkpoint(int(match.group(1))).is_dir() else None
