"""Data paths of a spec as files that can be read: patterns, directories, URLs and Hub data sets.

Knows what paths mean and where downloads go; the network is asked only for what the spec names by URL or id.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rankzero.data.read.download import download, remember, remembered
from rankzero.data.read.file_names import files_of_directory
from rankzero.data.read.hub_layout import CONVERTED, UnsureError, choose, choose_converted
from rankzero.data.read.local import local_files, may_be_here
from rankzero.data.read.network import Network, RealNetwork, RemoteFile, other_meaning
from rankzero.errors import DataError, Problem, ServiceError
from rankzero.machine import offline as no_network
from rankzero.spec.data_paths import DataPath, RowSlice, parse_data_path, without_protocol
from rankzero.spec.run_spec import SourceSpec


@dataclass(frozen=True, slots=True)
class LocatedSource:
    """A source with its files."""

    source: SourceSpec
    files: tuple[str, ...]
    sample: int | None
    """Rows to draw from all of its files together; None: all rows."""
    rows: RowSlice | None = None
    """Only these rows of all of its files together; a sample is drawn from them."""

    @property
    def is_whole(self) -> bool:
        """Whether every row takes part."""
        return self.sample is None and self.rows is None

    def too_few(self, n_rows: int) -> Problem:
        """What to say where its files have not as many rows."""
        if self.sample is None:
            what = f"the files have {n_rows} rows, which [{self.rows}] goes beyond or has none of"
            return Problem(what, self.source.path, "[:100] are the first hundred, [:1%] the first hundredth")
        left = "" if self.rows is None else f" in [{self.rows}]"
        hint = "ask for fewer, or leave the sample out"
        return Problem(f"a sample of {self.sample} rows of only {n_rows}{left}", self.source.path, hint)


def input_bytes(sources: Sequence[LocatedSource]) -> int:
    """What a progress bar over the files of these sources counts to."""
    return sum(os.path.getsize(path) for source in sources for path in source.files if os.path.isfile(path))


def expand(
    sources: Sequence[SourceSpec], *, network: Network | None = None, offline: bool = False
) -> tuple[LocatedSource, ...]:
    """The files of each source, in an order that does not depend on the machine.

    Raises one DataError with all that is wrong with local paths, before anything is downloaded; then ServiceError,
    AccessError, ConfigError or DataError for remote ones.
    """
    paths, here = understood(sources)
    located = {
        index: LocatedSource(sources[index], files, paths[index].sample or sources[index].sample)
        for index, files in here.items()
    }
    for index, path in enumerate(paths):
        if index not in here:
            source = sources[index]
            files = _remote(path, source.path, network or RealNetwork(), offline or no_network())
            located[index] = LocatedSource(source, files, path.sample or source.sample, path.rows)
    return tuple(located[index] for index in range(len(sources)))


def understood(sources: Sequence[SourceSpec]) -> tuple[list[DataPath], dict[int, tuple[str, ...]]]:
    """What the path of each source means, and the files of those that are here, by the number of the source.

    Raises one DataError with all that is wrong with them, and StorageError where one cannot be looked at now.
    """
    problems: list[Problem] = []
    paths: list[DataPath] = []
    here: dict[int, tuple[str, ...]] = {}
    for index, source in enumerate(sources):
        path = without_protocol(parse_data_path(source.path, lambda name: may_be_here(os.path.expanduser(name))))
        paths.append(path)
        if None not in (path.sample, source.sample) and path.sample != source.sample:
            what = f"the path samples {path.sample} rows and `sample` {source.sample}"
            problems.append(Problem(what, source.path, "give one of the two"))
        elif path.sample == 0:
            problems.append(Problem("a sample of no rows", source.path, "#500 samples 500 rows"))
        elif path.rows is not None and "+" in str(path.split):
            what = "rows are taken of one split, not of several"
            problems.append(Problem(what, source.path, "name each split by a source of its own"))
        elif path.place == "local":
            files = local_files(os.path.expanduser(path.path))
            if isinstance(files, Problem):
                problems.append(files)
            else:
                here[index] = files
    if problems:
        raise DataError(problems)
    return paths, here


def _remote(path: DataPath, text: str, network: Network, offline: bool) -> tuple[str, ...]:
    key = repr((path.place, path.path, path.subset, path.split, path.revision))
    if offline:
        if files := remembered(key):
            return files
        what = "it is not in the cache, and the network is not to be used"
        if path.place == "hub":
            what = f"no such file; as a Hub data set {what}"
        meant = other_meaning(path.path) if path.place == "hub" else ""
        hint = "once with the network, without HF_HUB_OFFLINE and model.local_files_only, fetches it"
        raise ServiceError(what, where=text, hint=meant + hint)
    try:
        files = tuple(download(file, network) for file in listed(path, text, network))
    except ServiceError as error:
        more = "; what was fetched before is used with HF_HUB_OFFLINE=1" if remembered(key) else ""
        raise ServiceError(Problem(p.what, p.where or text, p.hint + more) for p in error.problems) from error
    remember(key, files)
    return files


def listed(path: DataPath, text: str, network: Network) -> tuple[RemoteFile, ...]:
    """The files elsewhere that a path means, in order; `text` is the path as it is written. Raises DataError,
    ServiceError, AccessError or ConfigError."""
    try:
        return _in_data_set(path, network) if path.place == "hub" else _at_url(path.path, network)
    except DataError as error:
        raise DataError(Problem(p.what, p.where or text, p.hint) for p in error.problems) from error


def _at_url(url: str, network: Network) -> tuple[RemoteFile, ...]:
    found = network.find(url)
    if found.is_directory:
        names = files_of_directory([file.name for file in found.files], url)
        if isinstance(names, Problem):
            raise DataError(names)
        by_name = {file.name: file for file in found.files}
        return tuple(by_name[name] for name in names)
    if not found.files:
        raise DataError("no file matches the pattern", where=url)
    return found.files


def _in_data_set(path: DataPath, network: Network) -> tuple[RemoteFile, ...]:
    files = {file.name: file for file in network.data_set(path.path, path.revision)}
    try:
        names = choose(list(files), _card(files, network), path.subset, path.split)
    except UnsureError as unsure:
        if path.revision is not None:
            hint = "name its files: hf://datasets/ORG/NAME@REVISION/FILE"
            raise DataError(f"which files are meant is not clear: {unsure}", hint=hint) from unsure
        files = {file.name: file for file in _converted(path, network, unsure)}
        names = choose_converted(list(files), path.subset, path.split)
    return tuple(files[name] for name in names)


def _card(files: dict[str, RemoteFile], network: Network) -> str:
    if "README.md" not in files:
        return ""
    return Path(download(files["README.md"], network)).read_text(encoding="utf-8", errors="replace")


def _converted(path: DataPath, network: Network, unsure: UnsureError) -> tuple[RemoteFile, ...]:
    try:
        return network.data_set(path.path, CONVERTED)
    except DataError as error:
        what = f"which of its files are meant is not clear ({unsure}), and the Hub has no conversion of it"
        hint = "name its files by URL: hf://datasets/ORG/NAME/FILE"
        raise DataError(what, where=path.path, hint=hint) from error
