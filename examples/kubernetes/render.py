"""Render every recipe into examples/kubernetes/<recipe>/manifests: `python examples/kubernetes/render.py`.

The recipes are what `rankzero init --recipe` writes; there is no other source. A test keeps the manifests current.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from rankzero.cli.init import RECIPES, RUN_FILE, recipe_files
from rankzero.launch.plan import make_plan
from rankzero.launch.render import render
from rankzero.launch.render.content import file_name, to_document
from rankzero.spec.cluster_load import load_cluster
from rankzero.spec.load import load_run_spec
from rankzero.spec.resolve import resolve

HERE = Path(__file__).parent
VARIABLES = {
    "lora-jsonl": {"DATA_ROOT": "/mnt/filesystem-o2/datasets", "CKPT_ROOT": "/mnt/filesystem-o2/checkpoints"},
}
"""What is set where a recipe's data lies on the cluster and not beside it, as the first lines of its run.yaml say."""
EXAMPLES = [recipe for recipe in RECIPES if RECIPES[recipe] != "docker"]


def manifests(recipe: str) -> dict[str, str]:
    """File names and texts of one example; the same as `rankzero render run.yaml -o manifests` in its directory."""
    with TemporaryDirectory() as directory:
        file = Path(directory, RUN_FILE)
        file.write_text(recipe_files(recipe)[RUN_FILE], encoding="utf-8")
        run = resolve(load_run_spec(file, env=VARIABLES.get(recipe, {})).spec)
    objects = render(make_plan(run, load_cluster(RECIPES[recipe], env={}).spec))
    return {file_name(index, manifest): to_document(manifest) for index, manifest in enumerate(objects, start=1)}


def main() -> None:
    """Rewrite all of them."""
    for recipe in EXAMPLES:
        folder = HERE / recipe / "manifests"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name, text in manifests(recipe).items():
            (folder / name).write_text(text, encoding="utf-8")
            sys.stdout.write(os.path.relpath(folder / name) + "\n")


if __name__ == "__main__":
    main()
