"""What a run will take, here or on a cluster: from files where they say enough, else from torch and transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rankzero.api.installed import require_data, require_engine
from rankzero.errors import RankzeroError
from rankzero.wording import first_line

if TYPE_CHECKING:
    from rankzero.forecast.forecast import Forecast
    from rankzero.launch.survey import Survey
    from rankzero.spec.cluster_spec import ClusterSpec
    from rankzero.spec.run_spec import RunSpec

Say = Callable[[str], None]
"""Told what takes seconds, before it does."""


def forecast_here(spec: RunSpec, nproc: int, say: Say) -> Forecast:
    """The forecast of a run of `nproc` processes on this machine. `spec` is resolved, its paths absolute. Rows that are
    not in the cache are tokenised; no weights are loaded. Raises what training would raise before it loads them."""
    require_data()
    from rankzero.forecast.without_torch import forecast_without_torch

    found = forecast_without_torch(spec, nproc)
    if found is not None:
        return found
    require_engine()
    say("the rows or the model's shapes are not known yet; import torch and transformers")
    from rankzero.engine.forecasting import dry_run

    return dry_run(spec, nproc)


def forecast_on(run: RunSpec, cluster: ClusterSpec, survey: Survey, say: Say) -> tuple[Forecast | None, str]:
    """The forecast of a run on a cluster, which a survey has looked at; or None, and why the model's shapes are not
    known here. `run` has the paths of this machine. Raises ConfigError for what the run would be refused for."""
    try:
        require_data()
        from rankzero.forecast.elsewhere import facts_from_files, forecast_elsewhere, model_files, place_of

        place, precision = place_of(run, cluster, survey.gpu, survey.gpu_bytes)
        directory = model_files(run.model)
        facts = facts_from_files(run, directory, precision)
        if facts is None:
            require_engine()
            say("the model's files do not tell all its shapes; import torch and transformers")
            from rankzero.engine.forecasting import facts_from_config

            facts = facts_from_config(run, directory, precision)
    except RankzeroError as error:
        return None, f"its shapes are not known here, so neither is its memory: {first_line(error)}"
    return forecast_elsewhere(run, directory, facts, place, precision), ""
