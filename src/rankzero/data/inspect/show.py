"""Rows as the model sees them, token by token, with the trained ones marked. Knows how to print; decides nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, groupby

from rich.text import Text
from tokenizers import Tokenizer as Backend
from tokenizers.decoders import DecodeStream

from rankzero.data.cache.job import Job
from rankzero.data.read.download import origin
from rankzero.data.read.locate import LocatedSource, expand
from rankzero.data.read.sources import require_readable
from rankzero.data.rows.chunks import apart, lines
from rankzero.data.rows.conversation import Conversation
from rankzero.data.rows.parse import parse
from rankzero.data.rows.problems import LocatedProblem, RowProblem
from rankzero.data.tokens.chat import Renderer, TokenRules
from rankzero.data.tokens.row_tokens import Encoder, Row
from rankzero.data.tokens.tokenizer import Tokenizer, TokenizerParts, take_apart
from rankzero.errors import DataError
from rankzero.spec.run_spec import SourceSpec

_BAR = "│"


@dataclass(frozen=True, slots=True)
class Piece:
    """What one token adds to the text; a character that takes several tokens is one piece."""

    text: str
    trained: bool
    special: bool


@dataclass(frozen=True, slots=True)
class ShownRow:
    """One row. `dropped` says why it would not be trained at all, if so."""

    where: str
    pieces: list[Piece]
    tokens: int
    supervised: int
    truncated: bool
    dropped: str
    straddles: bool
    unopened: str
    label: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def headline(self) -> str:
        """`train.jsonl:3: 62 tokens, 20 trained`."""
        what = f"{self.supervised} trained" if self.label is None else f"label {self.label!r}"
        notes = [f"{self.where}: {self.tokens} tokens, {what}"]
        if self.truncated:
            notes.append("truncated")
        if self.straddles:
            notes.append("one token joins prompt and completion; it is trained")
        if self.unopened:
            notes.append(f"in use the template opens the answer with {self.unopened!r}, which is not in the row")
        notes += self.notes
        if self.dropped:
            notes.append(f"dropped: {self.dropped}")
        return ", ".join(notes)

    def __str__(self) -> str:
        return f"{self.headline}\n{self.plain()}"

    def plain(self) -> str:
        """The tokens between bars, the trained ones in ⟦brackets⟧."""
        out: list[str] = []
        inside, new_line = False, True
        for piece in self.pieces:
            if inside and not piece.trained:
                out.append("⟧")
            out += ("" if new_line else _BAR, "⟦" if piece.trained and not inside else "", _visible(piece.text))
            inside, new_line = piece.trained, piece.text.endswith("\n")
        return ("".join(out) + ("⟧" if inside else "")).removesuffix("\n")

    def coloured(self) -> Text:
        """The tokens between bars, the trained ones green, special tokens bold."""
        text = Text()
        new_line = True
        for piece in self.pieces:
            style = "green" if piece.trained else "default"
            text.append("" if new_line else _BAR, style="dim")
            text.append(_visible(piece.text), style=f"bold {style}" if piece.special else style)
            new_line = piece.text.endswith("\n")
        text.rstrip()
        return text


def rows_to_show(
    source: SourceSpec,
    tokenizer: Tokenizer,
    rules: TokenRules,
    *,
    line: int | None = None,
    count: int = 3,
    seed: int = 0,
    offline: bool = False,
) -> Iterator[ShownRow]:
    """What lies at `line` of the source's first file, or the first `count` rows that would be trained; `seed` draws the
    sample that the source asks for; `offline` fetches nothing. Raises DataError at a row that cannot be read or
    rendered, and as `expand` does."""
    (located,) = expand([source], offline=offline)
    if line is not None:
        located = LocatedSource(source, located.files[:1], sample=None)
    require_readable(located.files)
    parts = take_apart(tokenizer, rules.trains)
    renderer, encoder = Renderer(parts, rules), Encoder(parts, rules)
    backend = Backend.from_str(parts.backend)
    job = Job([located], parts, rules, seed)
    found = 0
    for file, number, read in _read(job, line):
        path = origin(job.paths[file])
        if isinstance(read, list):
            raise _error(path, read)
        rendered = renderer.render(read, job.image_root(file))
        if isinstance(rendered, RowProblem):
            raise _error(path, [rendered])
        row, where = next(encoder.encode([rendered])), f"{path}:{number}"
        if row.rejected_from:
            for one, answer in zip(row.sequences, ("chosen", "rejected"), strict=True):
                yield _shown(f"{where} {answer}", one, rules, parts, backend)
        else:
            yield _shown(where, row, rules, parts, backend)
        found += 1
        if line is None and found == count:
            return
    if not found:
        where = source.path if line is None else f"{origin(job.paths[0])}:{line}"
        raise DataError("there is no row here", where=where)


def _read(job: Job, line: int | None) -> Iterator[tuple[int, int, Conversation | list[RowProblem]]]:
    """The rows in their order, or those at one line: the number of their file, their line, and what they say or what is
    wrong with them. One row may be several conversations, and of an array several rows may lie on one line."""
    torn: dict[int, list[RowProblem]] = {}

    def on_problems(_path: str, problems: list[RowProblem]) -> None:
        """Pieces of rows that belong to none are known before the first whole row is."""
        torn.clear()
        torn.update({number: list(same) for number, same in groupby(problems, key=lambda problem: problem.line)})

    for chunk in chain.from_iterable(map(apart, job.chunks(on_problems))):
        numbers = [number for number, _line in lines(chunk)]
        if line is not None and line not in numbers:
            if chunk.first_line > line:
                break
            continue
        spec = job.spec_of(chunk.source)
        parsed = parse(
            *(chunk, spec.format, spec.columns or None),
            trains=job.rules.trains,
            minus_one_is_a_class=job.rules.minus_one_is_a_class,
        )
        bad = {number: torn.pop(number) for number in sorted(torn) if number <= numbers[-1]}
        for problem in parsed.problems:
            bad.setdefault(problem.line, []).append(problem)
        for number in sorted({*bad, *(conversation.line for conversation in parsed.conversations)}):
            if line not in (None, number):
                continue
            if number in bad:
                yield chunk.source, number, bad[number]
            yield from ((chunk.source, number, one) for one in parsed.conversations if one.line == number)
    if line in torn:
        yield 0, line, torn[line]


def _error(path: str, problems: list[RowProblem]) -> DataError:
    return DataError(LocatedProblem(path, problem).public() for problem in problems)


def _shown(where: str, row: Row, rules: TokenRules, parts: TokenizerParts, backend: Backend) -> ShownRow:
    trained = {token for start, end in row.ranges for token in range(start, end)}
    ids = row.ids[: rules.max_length]
    return ShownRow(
        where=where,
        pieces=_pieces(ids, trained, rules, parts, backend),
        tokens=len(row.ids),
        supervised=len(trained),
        truncated=row.truncated,
        dropped=row.dropped,
        straddles=row.straddles,
        unopened=row.unopened,
        label=row.label,
        notes=(*row.notes, *_weights_in_words(row)),
    )


def _weights_in_words(row: Row) -> list[str]:
    counted = [f"{end - start} × {weight:g}" for (start, end), weight in zip(row.ranges, row.weights, strict=False)]
    return [f"trained tokens × weight: {', '.join(counted)}"] if counted else []


def _pieces(
    ids: list[int], trained: set[int], rules: TokenRules, parts: TokenizerParts, backend: Backend
) -> list[Piece]:
    """Token by token; an image as one piece, with the number of its tokens."""
    stream = DecodeStream(skip_special_tokens=False)
    image = None if rules.vision is None else rules.vision.image_token_id
    pieces = []
    position = 0
    while position < len(ids):
        text, first = stream.step(backend, ids[position]), position
        position += 1
        while ids[first] == image and position < len(ids) and ids[position] == image:
            position += 1
        if text is not None:  # None: the character goes on in the next token
            copies = f" × {position - first}" if position - first > 1 else ""
            pieces.append(Piece(text + copies, position - 1 in trained, text in parts.specials))
    return pieces


def _visible(text: str) -> str:
    return text.replace("\n", "⏎\n").replace("\t", "⇥")
