"""Tasks of EleutherAI's evaluation harness (lm-eval), those that it brings and those of a directory of YAML files."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rankzero.engine.chat import Voice
from rankzero.engine.console import results_alone_on_stdout
from rankzero.errors import ConfigError, ServiceError
from rankzero.model.out_of_memory import out_of_memory_told
from rankzero.wording import first_line


def require_harness() -> None:
    """Raise ConfigError where it is not installed."""
    if importlib.util.find_spec("lm_eval") is None:
        raise ConfigError("lm-eval is not installed", where="--task", hint="pip install 'rankzero[train,eval]'")


def find_tasks(tasks: Sequence[str], directory: str | None) -> Any:
    """The harness's own register of tasks: of those that it brings, or of `directory`, which has them as YAML files.

    Raises ConfigError where it is not installed, and for tasks that there are not.
    """
    require_harness()
    from lm_eval.tasks import TaskManager

    with results_alone_on_stdout():
        # The harness reads thousands of files to know its own tasks; those of a directory are known at once.
        manager = TaskManager(include_path=directory, include_defaults=directory is None)
        unknown = [task for task in tasks if not manager.match_tasks([task])]
    if unknown:
        hint = "`lm-eval ls tasks` lists what the harness brings; --task-dir names a directory with others"
        raise ConfigError(f"there is no task {', '.join(unknown)}", where="--task", hint=hint)
    return manager


def run_tasks(
    voices: Sequence[Voice], tasks: Sequence[str], manager: Any, *, limit: int | None, batch_size: int
) -> dict[str, dict[str, dict[str, float]]]:
    """Metrics as the harness names them, by task and by who answered. `manager`: what `find_tasks` has found.

    A model with a chat template is asked through it. Raises ConfigError for a task that cannot be asked, ServiceError
    where what it fetches cannot be, RankzeroError where memory runs out.
    """
    import httpx2
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM

    with results_alone_on_stdout():
        found: dict[str, dict[str, dict[str, float]]] = {}
        for voice in voices:
            speaker = voice.speaker
            chat = speaker.tokenizer.chat_template is not None
            with voice.muted(), out_of_memory_told("--task", "lower --batch-size"):
                with _tied_as_it_is(speaker.model):
                    model = HFLM(pretrained=speaker.model, tokenizer=speaker.tokenizer, batch_size=batch_size)
                model.chat_template_args = dict(speaker.template_kwargs)
                try:
                    results = simple_evaluate(
                        model=model,
                        tasks=list(tasks),
                        task_manager=manager,
                        limit=limit,
                        apply_chat_template=chat,
                        bootstrap_iters=0,
                        log_samples=False,
                    )
                except (FileNotFoundError, ValueError, KeyError) as error:
                    what = f"the harness refuses: {first_line(error)}"
                    raise ConfigError(what, where="--task", hint="see the task's own YAML file") from error
                except (OSError, httpx2.HTTPError) as error:
                    what = f"the harness cannot fetch or read what it asks: {first_line(error)}"
                    raise ServiceError(what, where="--task", hint="is the network reachable from here?") from error
            for task, metrics in results["results"].items():
                found.setdefault(task, {})[voice.name or "tuned"] = _numbers(metrics)
    return found


@contextmanager
def _tied_as_it_is(model: Any) -> Iterator[None]:
    """Let nobody tie the weights of a loaded model again, as HFLM does to what it is given: an adapter that trains
    embeddings has parted or tied them itself, and transformers fails at its modules."""
    model.tie_weights = lambda: None
    try:
        yield
    finally:
        del model.tie_weights


def _numbers(metrics: dict[str, Any]) -> dict[str, float]:
    """`acc,none` and its like; their standard errors too, where the harness has some."""
    return {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
