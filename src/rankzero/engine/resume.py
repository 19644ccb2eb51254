"""Whether what is in a run directory may be continued by this spec, data and tokenizer. Knows no tensors."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rankzero import __version__
from rankzero.data.cache.dataset import TokenizedDataset, summary
from rankzero.data.prompts import Prompt
from rankzero.engine.distributed import gather_objects
from rankzero.engine.inputs import Inputs
from rankzero.engine.layers import own_products
from rankzero.engine.setup import Session
from rankzero.errors import ConfigError, Problem
from rankzero.machine import cpu_kind
from rankzero.model.source import weights_fingerprint
from rankzero.run_dir.atomic import not_read_errors
from rankzero.run_dir.paths import RunDir
from rankzero.run_dir.same_run import Differences, spec_changes, with_way_out
from rankzero.run_dir.setting import newest_manifest
from rankzero.spec.diff import IDENTITIES, differ, is_allowed
from rankzero.spec.run_options import RunOptions
from rankzero.spec.run_spec import EvalFraction, RunSpec

_COUNTED = ("rows", "tokens", "supervised_tokens", "longest")


def manifest_meta(spec: RunSpec, inputs: Inputs, environment: dict[str, Any]) -> dict[str, Any]:
    """What a checkpoint says of the run that made it, but for the base's fingerprint: `model`."""
    return {
        "rankzero": __version__,
        "spec": spec.model_dump(mode="json"),
        "world_size": environment["world_size"],
        **_identities(inputs),
        "dtype": environment["dtype"],
        "labels": inputs.labels,
    }


def _identities(inputs: Inputs) -> dict[str, Any]:
    return {
        "tokenizer": inputs.tokenizer_fingerprint,
        "data": inputs.train.fingerprint,
        "eval_data": None if inputs.eval is None else inputs.eval.fingerprint,
    }


def refuse_different_inputs(meta: dict[str, Any], prompts: Sequence[Prompt]) -> None:
    """Raise ConfigError, on every rank, where nodes have other files of the same model, as far as their fingerprints
    are known: replicas of a frozen base would each train on their own; and where they have other data or prompts, since
    each plans every step, every evaluation and every round of answers for all. A collective."""
    mounted = "put the files on a volume that all nodes mount"
    again = f"{mounted}, or copy them again; of a Hub model set model.revision"
    kinds = {
        "model.name": ("weights", meta.get("model"), again),
        "data.train": ("data", meta["data"], f"{mounted}; of a stream, begin again when none of them changes"),
        "data.eval": ("data to evaluate on", meta["eval_data"], mounted),
        "eval.prompts": ("prompts", tuple(prompts), mounted),
    }
    everyones = gather_objects({field: own for field, (_, own, _) in kinds.items()})
    problems = [
        Problem(f"the processes have different {what}", field, hint)
        for field, (what, _, hint) in kinds.items()
        if any(theirs[field] != everyones[0][field] for theirs in everyones)
    ]
    if problems:
        raise ConfigError(problems)


def refuse_before_gpus(run_dir: RunDir, spec: RunSpec, inputs: Inputs, options: RunOptions) -> None:
    """As check_same_run, as far as it can be known without the devices that will train. Reads, writes nothing."""
    manifest = newest_manifest(run_dir)
    if manifest is not None:
        own = {"model": weights_fingerprint(inputs.source.weights, own_code=spec.own_code), **_identities(inputs)}
        alike = rows_alike(kept_summary(run_dir), inputs)
        check_same_run(manifest, {**manifest, **own}, spec, run_dir, options.allow_changes, alike)


def kept_summary(run_dir: RunDir) -> dict[str, Any]:
    """What the directory says of the rows of its run; {} where it says nothing, or not to this user. Raises
    NotReadError."""
    with not_read_errors(run_dir.data):
        try:
            found = json.loads(run_dir.data.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError, PermissionError, ValueError):
            return {}
    return found if isinstance(found, dict) else {}


def rows_alike(kept: Mapping[str, Any], inputs: Inputs) -> frozenset[str]:
    """The identities whose rows are as many as a run had, with as many tokens, of which as many are trained. Of rows
    with images that says too little."""
    found = set()
    for identity, name, rows in (("data", "train", inputs.train), ("eval_data", "eval", inputs.eval)):
        if isinstance(rows, TokenizedDataset) and not rows.sees_images and isinstance(before := kept.get(name), dict):
            now = json.loads(json.dumps(summary(rows)))
            found |= {identity} if all(before.get(key) == now[key] for key in _COUNTED) else set()
    return frozenset(found)


def check_same_run(
    manifest: dict[str, Any],
    now: dict[str, Any],
    spec: RunSpec,
    run_dir: RunDir,
    allowed: Collection[str],
    alike: Collection[str] = (),
) -> Differences:
    """Compare the checkpoint's run with this one field by field. `alike`: the identities that are taken for the same
    where the checkpoint knows them as an earlier version did.

    Raises ConfigError with every harmful difference and the override that would accept it, where one can.
    """
    same = [name for name in IDENTITIES if manifest.get(name) is not None and manifest[name] == now[name]]
    problems, accepted = spec_changes(manifest, spec, allowed, same)
    notices, names, unsure = list(accepted.notices), list(accepted.accepted), list[str]()
    tokenizer_changed = manifest.get("tokenizer") != now["tokenizer"]
    for name, words in IDENTITIES.items():
        before = manifest.get(name)
        if before == now[name] or (tokenizer_changed and name in {"data", "eval_data"}):
            continue  # tokens follow from the tokenizer: one cause is enough
        if differ(before, now[name]) is None and name in {"model", *alike}:
            notices.append(f"{words}: taken for the same, which the earlier version's checkpoint does not say for sure")
            unsure.append(f"an earlier version saved it, which knew {words} otherwise")
            continue
        if name == "model" and spec.model.trust_remote_code:
            words += " or its own code"
        elif name == "model" and spec.lora is None and not spec.keeps_reference:
            hint = "undo it: in a full fine-tune all weights are the checkpoint's, and other ones would have no effect"
            problems.append(Problem(f"{words} changed since the checkpoint", name, hint))
            continue
        if (given := is_allowed(name, allowed)) or spec.resume == "continue":
            by = f"--allow-change {name}" if given else "resume: continue"
            notices.append(f"{words} changed; accepted by {by}")
            names.append(name)
        else:
            hint = f"undo it, or pass --allow-change {name}"
            if name == "eval_data" and isinstance(spec.data.eval, EvalFraction):
                hint += (
                    "; of the same files an earlier version may have held other rows out: these may have been trained"
                )
            problems.append(Problem(f"{words} changed since the checkpoint", name, hint))
    if list(manifest.get("labels") or ()) != list(now["labels"] or ()):
        before, after = (", ".join(labels or ["none"]) for labels in (manifest.get("labels"), now["labels"]))
        words = f"the classes were {before}, and are {after} now"
        problems.append(Problem(words, "data.labels", "undo it: the head that is saved is for the classes that were"))
    if problems:
        raise ConfigError(with_way_out(problems, run_dir, spec, manifest))
    return Differences(tuple(notices), tuple(names), tuple(unsure))


def makes_incomparable(accepted: Collection[str], spec: RunSpec) -> list[str]:
    """Which of these changes make evaluations before and after them say different things: of other rows, other tokens,
    of another model than the saved weights make now, or by checkpoint.best_metric in another unit."""
    named = {"eval_data", "tokenizer", "model", "model.quantization", "lora.alpha", "lora.use_rslora"}
    units = {field for field, measures in spec.task_section.units.items() if spec.checkpoint.best_metric in measures}
    return [name for name in accepted if name in named | units]


def moves_rows(accepted: Collection[str]) -> bool:
    """Whether these changes make the rows of a step others: how many it has, or which there are."""
    return not {"train.global_batch_size", "data", "tokenizer"}.isdisjoint(accepted)


def layout_of(session: Session, spec: RunSpec, environment: dict[str, Any]) -> dict[str, str]:
    """What does not change the maths but the order in which numbers are added up, and so their last bits: names in
    words, and values."""

    def yes(value: bool) -> str:
        return "yes" if value else "no"

    groups = {
        "processes of a pass": spec.train.context_parallel,
        "processes of all experts": spec.train.expert_parallel,
    }
    cpu = cpu_kind() if session.device.kind == "cpu" else ""
    own = own_products(spec, session.device)
    return {
        "processes": str(environment["world_size"]),
        "device": session.device.name,
        **({"CPU": cpu} if cpu else {}),
        "sharding": session.parallel.name,
        "offload": spec.train.offload,
        "tokens of a pass": str(session.memory.micro_batch_tokens),
        **({"passes at once": passes_at_once(session.memory.passes_at_once)} if cpu else {}),
        "recomputed activations": yes(session.memory.gradient_checkpointing),
        "attention": session.attention.implementation or "auto",
        "rows end to end": yes(session.attention.padding_free),
        "compiled": yes(session.compiled is not None),
        "float32 by oneDNN": yes("float32" in own),
        **({"bfloat16 in float32": "yes"} if environment["dtype"] == "bfloat16" and "bfloat16" in own else {}),
        **{name: str(size) for name, size in groups.items() if size > 1},
        **{name: environment["versions"].get(name, "none") for name in ("torch", "transformers", "peft")},
    }


def passes_at_once(count: int) -> str:
    """Several are cut so that all of them end together; a version that said their number alone cut them otherwise."""
    return str(count) if count == 1 else f"{count} in rounds"


_EARLIER = {"passes at once": "1"}
"""What layouts of earlier versions do not say."""


def moved(before: dict[str, str] | None, now: dict[str, str]) -> list[str]:
    """What differs between two layouts: `processes: 2 before, 1 now`."""
    if before is None:
        return ["how the run lay over processes is not in the checkpoint"]
    return [
        f"{name}: {before.get(name, _EARLIER.get(name, 'unknown'))} before, {value} now"
        for name, value in now.items()
        if before.get(name, _EARLIER.get(name)) != value
    ]


def how_it_continues(
    step: int, accepted: Collection[str], differences: list[str], unsure: Sequence[str] = (), *, fixed_order: bool
) -> str:
    """The sentence that says what is the same as if the run had never stopped, and what is not.

    `unsure`: why the rows, or the base, may be others. `fixed_order`: the device adds numbers up in the same order
    every time.
    """
    where = f"continuing from step {step}"
    if accepted:
        return f"{where} with other settings than it was begun with, not bit-exactly: {', '.join(accepted)} changed"
    if unsure:
        why = "; ".join([*unsure, *differences])
        return f"{where} with the same trained weights and optimizer, not bit-exactly: {why}"
    if differences:
        return f"{where} with the same weights, optimizer and rows, not bit-exactly: {'; '.join(differences)}"
    if fixed_order:
        return f"{where} bit-exactly"
    return f"{where} from the same state to the last bit; this device may round the steps to come differently"
