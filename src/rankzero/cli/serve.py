"""`rankzero serve`: a run's result behind OpenAI's routes, here or as objects of a cluster."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankzero.cli.completion import run_names
from rankzero.cli.render import ThereOption
from rankzero.cli.target import BaseOption, place_of
from rankzero.cli.typed import refuse_typed
from rankzero.errors import ServiceError, StopNow

if TYPE_CHECKING:
    from rankzero.api.serving import Serving


_HERE = ("host", "wait", "ready_file", "only_print", "model")
_THERE = ("image", "output", "gpus")


def serve(
    context: typer.Context,
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN|MODEL|RUN.yaml",
            help="A run directory or its name in ./runs, or a model's directory; with --cluster a run.yaml.",
            callback=place_of,
            autocompletion=run_names,
        ),
    ],
    more: Annotated[
        list[str] | None, typer.Argument(metavar="-- ARGUMENT", help="Arguments of the server's own, after --.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="What clients ask for (served-model-name); default: the run's name."),
    ] = None,
    engine: Annotated[
        str, typer.Option(metavar="ENGINE", help="vllm, transformers, or auto: vLLM where its program is found.")
    ] = "auto",
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 lets other machines in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8000,
    wait: Annotated[int, typer.Option(min=1, help="Seconds that loading may take.")] = 1800,
    ready_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="There from the first answer to the end; for probes.")
    ] = None,
    only_print: Annotated[bool, typer.Option("--print", help="Print the commands that would be run.")] = False,
    model: BaseOption = None,
    cluster: ThereOption = None,
    image: Annotated[str | None, typer.Option(help="With --cluster: another image than the workers'.")] = None,
    gpus: Annotated[int, typer.Option(min=1, help="With --cluster: GPUs of the pod.")] = 1,
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="DIR", help="With --cluster: one file per object.")
    ] = None,
) -> None:
    """Serve a run's result behind OpenAI's routes.

    An adapter is merged with its base first, once, into the cache. When the server is up it is asked one question, and
    only then called ready. Ctrl-C ends it. With --cluster: a Deployment and a Service as YAML, for kubectl apply.
    """
    if cluster is not None:
        refuse_typed(context, _HERE, "this is for a server here", "leave it out: the objects for a cluster are printed")
        from rankzero.api.planning import serving_objects
        from rankzero.cli.render import print_objects, write_files

        objects = serving_objects(
            run, cluster, name=name, image=image, engine=engine, port=port, gpus=gpus, more=more or []
        )
        if output is None:
            print_objects(objects, full=True)
        else:
            write_files(objects, Path(output))
        return
    refuse_typed(context, _THERE, "this is for --cluster", "name a cluster, or leave it out")
    from rankzero.api.installed import require_engine
    from rankzero.api.serving import plan_serving
    from rankzero.cli.own_file import require_object

    require_engine()
    if ready_file is not None and not only_print:
        require_object(ready_file, "--ready-file", "note of a server", ("url", "model", "engine"))
        _remove(ready_file)  # before what takes long: probes would have a container that started again for ready
    serving = plan_serving(run, name=name, engine=engine, host=host, port=port, more=more or [], model=model)
    if only_print:
        typer.echo(commands(serving))
        return
    _serve(serving, wait, ready_file)


def commands(serving: Serving) -> str:
    """What would be run, as a person would type it."""
    server = serving.server
    lines = [] if serving.is_prepared else [_preparation(serving)]
    return "\n".join([*lines, server.as_typed()])


def _preparation(serving: Serving) -> str:
    model = shlex.quote(str(serving.server.model))
    if serving.adapter is not None:
        merge = f"rankzero merge {shlex.quote(str(serving.adapter))} -o {model}"
        return merge if serving.base is None else f"{merge} --model {shlex.quote(serving.base)}"
    return f"mkdir -p {shlex.quote(str(serving.server.cwd))} && ln -s {shlex.quote(str(serving.weights))} {model}"


def _serve(serving: Serving, wait: int, ready_file: Path | None) -> None:
    """Until it is ended, or the server ends by itself, which is a ServiceError."""
    from rankzero.api.serving import served
    from rankzero.launch.serving import COMPLETION
    from rankzero.stop_signals import signals_to, stop_signals

    server = serving.server
    told = False

    def stop(_number: int) -> None:
        nonlocal told
        if not told:  # once: a second one would cut short what the first lets go of
            told = True
            raise StopNow

    def begun() -> None:
        typer.echo(f"starting {server.engine}: {server.as_typed()}", err=True)
        if not server.draws:
            why = "generation_config.json has no do_sample: true"
            typer.echo(f"note: it takes the likeliest token at any temperature: the model's {why}", err=True)

    if serving.adapter is not None and not serving.is_prepared:
        typer.echo(f"merging {serving.adapter} with its base into {server.model}", err=True)
    try:
        with (
            signals_to(stop, stop_signals()),
            served(serving, seconds=wait, begun=begun) as (child, said),
        ):
            place = {"url": f"{server.url}/v1", "model": server.name, "engine": server.engine}
            facts = {**place, "route": said.route, "answer": said.text}
            if said.route == COMPLETION:
                typer.echo(f"{server.name} has no chat template: it goes on with a prompt, and was asked so", err=True)
            with _noted(ready_file, facts):
                typer.echo(json.dumps(facts, ensure_ascii=False))
                sys.stdout.flush()
                code = child.wait()
            raise ServiceError(f"the server ended with {code}", where=server.engine, hint="its own words are above")
    except StopNow:
        typer.echo("the server has ended", err=True)


@contextmanager
def _noted(ready_file: Path | None, facts: dict[str, str]) -> Iterator[None]:
    """The facts in that file, for as long as they are true."""
    from rankzero.run_dir.atomic import place_given_by, write_text

    if ready_file is None:
        yield
        return
    try:
        with place_given_by("--ready-file"):
            write_text(ready_file, json.dumps(facts))
        yield
    finally:
        _remove(ready_file)


def _remove(ready_file: Path) -> None:
    """As it is written: what a link leads to, and nothing that takes what is written as it comes, as a pipe."""
    from rankzero.run_dir.atomic import place_given_by, storage_errors, takes_as_it_comes

    if not takes_as_it_comes(ready_file):
        with place_given_by("--ready-file"), storage_errors(ready_file):
            Path(os.path.realpath(ready_file)).unlink(missing_ok=True)
