"""What the site's lines of setup do to the shell that a node's script shares with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rankzero.launch.backends.slurm.state import read_notes
from rankzero.launch.last_words import parse_last_words
from tests.unit.launch.backends.slurm.test_script import TOLD, Stage

SETUPS = {
    "names": ["nodes=( host0 host1 )", "state= code=3 killed=9 asked=1", "note() { exit 3; }; leave() { exit 3; }"],
    "strict": ["set -euo pipefail", "set -C", "IFS=$'\\n\\t'", "trap 'exit 3' ERR"],
    "numbers": ["IFS=0123456789"],
    "exit": ["trap 'exit 3' EXIT"],
    "signals": ["trap 'exit 3' TERM"],
    "environment": ["unset $(compgen -v SLURM)"],
    "sh": ["set -eu", "trap 'exit 3' TERM", "trap 'exit 3' EXIT", "IFS=0123456789"],
}


@pytest.mark.parametrize("name", SETUPS)
@pytest.mark.parametrize("first", [False, True])
def test_what_setup_does_to_its_shell_is_nothing_to_what_comes_after_it(tmp_path: Path, name: str, first: bool) -> None:
    """A command that is to be tried again is, and one that is asked to stop is queued again."""
    of_sh = ["slurm.runtime=pyxis", "slurm.image=an-image"] if name == "sh" else []
    stage = Stage(tmp_path, settings=[f"slurm.setup={json.dumps(SETUPS[name])}", *of_sh])
    if name == "environment":  # the stand-in's own need
        stage.program("node-python", 'SLURM_NODEID=0\nread -r code < "$CODES/0"; sed -i 1d "$CODES/0"; exit "$code"\n')
    text, part, again, kept = (stage.first, "prepare", 69, 75) if first else (stage.text, "0", 197, 203)
    assert stage.run([again, 0], text=text) == 0 and stage.left == {0: []}
    assert [one.code for one in read_notes((stage.state / f"nodes/{part}").read_text(), "7")[1].endings] == [again, 0]
    stage.program("node-python", f"{TOLD}\nexit {kept}\n")
    assert stage.run(text=text, restart="1") == 75 and stage.asked == "requeue 7"
    assert read_notes((stage.state / f"nodes/{part}").read_text(), "7")[1].endings[-1].code == 75


@pytest.mark.parametrize(
    ("lines", "failed", "noted"),
    [
        (["set -e", "false; true"], "false; true", 1),
        (["set -u", "true $absent"], "true $absent", 1),
        (["exit 0", "true"], "exit 0", 70),
    ],
)
@pytest.mark.parametrize("first", [False, True])
def test_a_line_of_setup_that_ends_its_shell_is_named_too(
    tmp_path: Path, lines: list[str], failed: str, noted: int, first: bool
) -> None:
    stage = Stage(tmp_path, settings=[f"slurm.setup={json.dumps(lines)}"])
    part = "prepare" if first else "0"
    assert stage.run([0], text=stage.first if first else stage.text) == noted and stage.left == {0: ["0"]}
    told = parse_last_words((stage.state / f"nodes/{part}.words").read_text())
    assert told is not None and told.where == "slurm.setup" and told.what.endswith(f": {failed}")
    assert [one.code for one in read_notes((stage.state / f"nodes/{part}").read_text(), "7")[1].endings] == [noted]


def note_how_the_shell_ends(stage: Stage) -> None:
    """In a file of the stage."""
    srun = (stage.programs / "srun").read_text().removeprefix("#!/bin/bash\n")
    stage.program("srun", srun.replace('"$last"\n', '"$last"; echo $? > "$CODES/ended"\n'))


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("unwritable", ["words", "over", "again"])
def test_what_cannot_be_written_does_not_end_a_containers_shell(tmp_path: Path, unwritable: str, first: bool) -> None:
    """POSIX has a redirection that fails end the shell where a special builtin has it."""
    stage = Stage(tmp_path, settings=["slurm.runtime=pyxis", "slurm.image=an-image"])
    part = "prepare" if first else "0"
    names = {"words": f"{part}.words", "over": "over-7-0", "again": f"{part}.again-7-0"}
    place = stage.state / "nodes" / names[unwritable]
    told, code = (TOLD, 74 if first else 202) if unwritable == "again" else ("", 78)
    stage.program("node-python", f'mkdir "{place}"\n{told}\nexit {code}\n')
    note_how_the_shell_ends(stage)
    if unwritable == "words":
        place.mkdir(parents=True)
    assert stage.run(text=stage.first if first else stage.text) == code
    assert [one.code for one in read_notes((stage.state / f"nodes/{part}").read_text(), "7")[1].endings] == [code]
    assert (tmp_path / "codes/ended").read_text() == f"{code}\n"


@pytest.mark.parametrize(("lines", "code"), [([], 78), (["(exit 71)"], 71)])
@pytest.mark.parametrize("shell", ["bash", "sh"])
@pytest.mark.parametrize("first", [False, True])
def test_how_a_part_ends_is_not_what_setup_does_at_its_end(
    tmp_path: Path, lines: list[str], code: int, shell: str, first: bool
) -> None:
    """Its code counts where it could note nothing."""
    setup = ["trap 'echo done >> \"$CODES/cleaned\"; exit 0' EXIT", "IFS=0123456789", *lines]
    of_sh = ["slurm.runtime=pyxis", "slurm.image=an-image"] if shell == "sh" else []
    stage = Stage(tmp_path, settings=[f"slurm.setup={json.dumps(setup)}", *of_sh])
    note_how_the_shell_ends(stage)
    assert stage.run([78], text=stage.first if first else stage.text) == code
    assert (tmp_path / "codes/ended").read_text() == f"{code}\n"
    if shell == "bash":
        assert (tmp_path / "codes/cleaned").read_text() == "done\n"
