"""The data-preparation pipeline: check every row, then tokenise onto the cache's claim. Needs the extra `kfp`.

    python -m rankzero.pipelines.data_prep data_prep_pipeline.yaml

compiles it. Steps run in the workers' image built with EXTRAS=train,kfp: nothing is installed when a step starts.
kfp reads annotations as they stand, so they are not postponed in this file.
"""

import os
import sys

from kfp import compiler, dsl, kubernetes

IMAGE = os.environ.get("RANKZERO_IMAGE", "rankzero:latest")
DATASETS, CACHE = "/mnt/datasets", "/mnt/cache"
"""Where the two claims are, as in the profile infiniband-2x8: training pods then find what was made here."""
MODEL = "Qwen/Qwen3-30B-A3B"
"""What the recipes for that profile train."""


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def check_data(hf_dataset: str, split: str, report: dsl.Output[dsl.HTML]) -> dict[str, int]:
    """How many `rows` were looked at, and whether some are `bad`: all of them are in its log and in the report. The
    next step fails by it, since of a step that failed there would be no report."""
    from rankzero.pipelines.steps import check

    found = check(hf_dataset, split, report.path)
    print(found["refused"] or f"{found['rows_in']} rows, none of them bad")
    return {"rows": found["rows_in"], "bad": int(bool(found["refused"]))}


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def prepare_data(hf_dataset: str, split: str, model: str, max_len: int, cache: str, checked: dict[str, int]) -> str:
    """The directory of the tokenised rows, which training finds by itself."""
    from rankzero.pipelines.steps import prepare

    if checked["bad"]:
        raise RuntimeError("some rows cannot be trained on: check-data has them in its report and in its log")
    made = prepare(hf_dataset, split, model, max_len, cache)
    if made["rows_in"] != checked["rows"]:
        raise RuntimeError(f"{checked['rows']:.0f} rows were checked, but {made['rows_in']} were read")
    return str(made["directory"])


@dsl.pipeline(name="rankzero-data-prep", description="Check and tokenise a data set onto a claim.")
def data_prep_pipeline(
    hf_dataset: str,
    model: str = MODEL,
    split: str = "train",
    max_len: int = 4096,
    pvc_name: str = "llm-datasets",
    cache_pvc_name: str = "llm-cache",
    cache: str = f"{CACHE}/rankzero",
) -> None:
    """`hf_dataset` is a Hub id, a URL or a file on the claim `pvc_name`; `model` a Hub id or a directory on a claim.

    `max_len` and `model` are to be those of the run: rows tokenised for others are not found.
    """
    checked = check_data(hf_dataset=hf_dataset, split=split)
    prepared = prepare_data(
        hf_dataset=hf_dataset,
        split=split,
        model=model,
        max_len=max_len,
        cache=cache,
        checked=checked.outputs["Output"],
    )
    for task in (checked, prepared):
        task.set_env_variable("RANKZERO_CACHE", f"{CACHE}/rankzero")
        task.set_env_variable("HF_HOME", f"{CACHE}/hf")
        task.set_caching_options(False)  # the cache on the claim knows better what is there
        kubernetes.mount_pvc(task, pvc_name=pvc_name, mount_path=DATASETS)
        kubernetes.mount_pvc(task, pvc_name=cache_pvc_name, mount_path=CACHE)
        kubernetes.use_secret_as_env(task, "hf-token", {"token": "HF_TOKEN"}, optional=True)


def compile_to(path: str) -> None:
    """Write the pipeline as YAML."""
    compiler.Compiler().compile(data_prep_pipeline, path)


if __name__ == "__main__":
    compile_to(sys.argv[1])
