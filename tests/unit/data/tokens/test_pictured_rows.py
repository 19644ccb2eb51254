"""Rows with images: token ids as the model's own processor makes them, what is trained, cuts, problems, the cache."""

from __future__ import annotations

import base64
import copy
import json
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from rankzero.api.tokenizers import served_prompt
from rankzero.data.cache.dataset import TokenizedDataset
from rankzero.data.cache.encode import Task, chunk_encoder
from rankzero.data.cache.tokenize import TokenRules, prepare
from rankzero.data.images.embedded import keep, kept_images
from rankzero.data.inspect.serving import compare
from rankzero.data.inspect.token_counts import Tokens
from rankzero.data.inspect.validate import CheckOptions, check
from rankzero.data.pool import ordered_map
from rankzero.data.rows.chunks import Chunk
from rankzero.data.tokens.built_in_templates import read_template
from rankzero.data.tokens.image_tokens import DEEP_GREY
from rankzero.data.tokens.tokenizer import take_apart
from rankzero.errors import DataError
from rankzero.model.vision import Vision
from rankzero.spec.run_spec import SourceSpec
from tests.support.families import family_tokenizer
from tests.support.pictures import draw, llava_files, qwen_vl_files, qwen_vl_tokenizer, vision_of
from tests.support.tiny import write_jsonl
from tests.unit.data.support import user_assistant

SIZES = ((64, 64), (200, 120), (97, 333), (640, 480))


@dataclass
class Place:
    """A model's processor, its tokenizer, and a folder with a data file and images of SIZES."""

    vision: Vision
    tokenizer: Any
    folder: Path
    cache: Path

    def write(self, *rows: dict[str, Any], name: str = "rows.jsonl") -> str:
        return str(write_jsonl(self.folder / name, list(rows)))

    def tokenise(self, *rows: dict[str, Any], **rules: Any) -> TokenizedDataset:
        given = {"vision": self.vision.rules, **rules}
        return prepare([SourceSpec(path=self.write(*rows))], self.tokenizer, TokenRules(**given), self.cache)

    def ids(self, dataset: TokenizedDataset) -> list[list[int]]:
        return [dataset.row(i)[0].tolist() for i in range(len(dataset))]

    def trained(self, dataset: TokenizedDataset, i: int) -> str:
        ids, mask = dataset.row(i)
        return str(self.tokenizer.decode(ids[mask]))

    def expected(self, turns: list[dict[str, Any]], images: list[str]) -> list[int]:
        """What transformers' processor makes of these turns and images, whole."""
        processor = self.vision.rules.place.load()
        text = self.tokenizer.apply_chat_template(turns, tokenize=False)
        opened = [Image.open(self.folder / name) for name in images] or None
        return list(processor(text=[text], images=opened)["input_ids"][0])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return qwen_vl_files(tmp_path_factory.mktemp("qwen"))


@pytest.fixture
def place(files: Path, tmp_path: Path, own_cache: Path) -> Place:
    draw(tmp_path / "data", SIZES)
    return Place(vision_of(files), qwen_vl_tokenizer(), tmp_path / "data", own_cache)


def parts(*content: str | None) -> list[dict[str, str]]:
    """Texts, and None for an image."""
    return [{"type": "image"} if text is None else {"type": "text", "text": text} for text in content]


def test_ids_are_those_of_the_processor(place: Place) -> None:
    names = ["0.png", "1.png", "2.png", "3.png"]
    rows = [
        {**user_assistant("<image>\nWhat is it?", "a quick brown fox"), "images": names[:1]},
        {
            **user_assistant("<image> and <image>: which?", "the second", "<image>now?", "the third"),
            "images": names[1:],
        },
        user_assistant("What is the capital of Peru?", "Lima"),
        {
            "messages": [
                {"role": "system", "content": "Look."},
                {"role": "user", "content": [*parts("one "), {"type": "image", "image": names[3]}, *parts(" two")]},
                {"role": "assistant", "content": "seven"},
            ]
        },
        {**user_assistant("no tag", "put before it"), "images": [names[1], names[1]]},
    ]
    turns = [
        [{"role": "user", "content": parts(None, "\nWhat is it?")}, rows[0]["messages"][1]],
        [
            {"role": "user", "content": parts(None, " and ", None, ": which?")},
            rows[1]["messages"][1],
            {"role": "user", "content": parts(None, "now?")},
            rows[1]["messages"][3],
        ],
        rows[2]["messages"],
        [rows[3]["messages"][0], {"role": "user", "content": parts("one ", None, " two")}, rows[3]["messages"][2]],
        [{"role": "user", "content": parts(None, None, "no tag")}, rows[4]["messages"][1]],
    ]
    images = [names[:1], names[1:], [], names[3:], [names[1], names[1]]]
    dataset = place.tokenise(*rows)
    assert place.ids(dataset) == [place.expected(*pair) for pair in zip(turns, images, strict=True)]
    end = "<|im_end|>"
    assert [place.trained(dataset, i) for i in range(5)] == [
        f"a quick brown fox{end}",
        f"the second{end}the third{end}",
        f"Lima{end}",
        f"seven{end}",
        f"put before it{end}",
    ]
    assert dataset.supervised.tolist() == [int(dataset.row(i)[1].sum()) for i in range(5)]
    assert [[Path(path).name for path in dataset.images(i)] for i in range(5)] == images
    assert all(Path(path).is_absolute() and Path(path).is_file() for i in range(5) for path in dataset.images(i))


def url(place: Place, name: str) -> str:
    return "data:image/png;base64," + base64.b64encode((place.folder / name).read_bytes()).decode()


def test_images_that_rows_bring_themselves_are_those_of_files(place: Place) -> None:
    """As `data:` URLs, in parts of OpenAI and Anthropic, as bytes in Parquet, and by absolute paths."""
    by_name = {**user_assistant("<image> <image>?", "a"), "images": ["0.png", "1.png"]}
    expected = place.tokenise(by_name)
    first, second = url(place, "0.png"), url(place, "1.png")
    asked: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": first}},
        {"type": "text", "text": " "},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": second.partition(",")[2]}},
        {"type": "text", "text": "?"},
    ]
    rows = [
        {**by_name, "images": [first, {"bytes": second, "path": "x.png"}]},
        {**by_name, "images": [str(place.folder / name) for name in by_name["images"]]},
        {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": "a"}]},
    ]
    pictures = [{"bytes": (place.folder / name).read_bytes(), "path": name} for name in by_name["images"]]
    table = [{**by_name, "images": pictures}]
    pq.write_table(pa.Table.from_pylist(table), place.folder / "rows.parquet")
    in_table = SourceSpec(path=str(place.folder / "rows.parquet"))
    of_table = prepare([in_table], place.tokenizer, TokenRules(vision=place.vision.rules), place.cache)
    for dataset in (of_table, *(place.tokenise(row) for row in rows)):
        assert place.ids(dataset) == place.ids(expected)
        sizes = [Image.open(path).tobytes() for path in dataset.images(0)]
        assert sizes == [Image.open(place.folder / name).tobytes() for name in ("0.png", "1.png")]
    assert len(list(kept_images().rglob("*/*"))) == 2, "each once, whatever brings it"


@pytest.mark.parametrize("how", ["lines", "no padding", "of URLs", "escaped", "capitals", "all in capitals"])
def test_base64_in_every_form_that_is_written(how: str, place: Place) -> None:
    """Wrapped at 76 characters (RFC 2045), without padding, in the alphabet of URLs (RFC 4648), escaped (RFC 2397)."""
    image = (place.folder / "0.png").read_bytes()
    image += bytes(number % 256 for number in range(256 - len(image) % 3))  # two characters of padding, and + and /
    plain = base64.b64encode(image).decode()
    assert plain.endswith("==") and "+" in plain and "/" in plain
    head, data = {
        "lines": ("data:image/png;base64,", base64.encodebytes(image).decode().replace("\n", "\r\n")),
        "no padding": ("data:image/png;base64,", plain.rstrip("=")),
        "of URLs": ("data:image/png;base64,", base64.urlsafe_b64encode(image).decode()),
        "escaped": ("data:image/png;base64,", plain.replace("=", "%3D").replace("+", "%2B").replace("/", "%2F")),
        "capitals": ("data:IMAGE/PNG;base64,", plain),
        "all in capitals": ("DATA:IMAGE/PNG;BASE64,", plain),
    }[how]
    assert (kept_images() / keep(head + data)).read_bytes() == image
    dataset = place.tokenise({**user_assistant("<image>", "a"), "images": [{"bytes": head + data, "path": None}]})
    assert [Path(path).read_bytes() for path in dataset.images(0)] == [image]


def test_a_type_of_gemini_in_capitals(place: Place) -> None:
    data = base64.b64encode((place.folder / "0.png").read_bytes()).decode()
    asked = {"role": "user", "parts": [{"inlineData": {"mimeType": "IMAGE/PNG", "data": data}}, {"text": "Which?"}]}
    dataset = place.tokenise({"contents": [asked, {"role": "model", "parts": [{"text": "red"}]}]})
    assert len(dataset.images(0)) == 1


def test_images_that_rows_bring_are_found_where_the_cache_is_now(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {**user_assistant("<image> <image>?", "a"), "images": [url(place, "0.png"), url(place, "1.png")]}
    first = place.tokenise(row)
    place.cache = place.cache.rename(tmp_path / "moved")
    monkeypatch.setenv("RANKZERO_CACHE", str(place.cache))
    moved = place.tokenise(row)
    assert moved.directory == place.cache / "tokenized" / first.directory.name
    assert moved.fingerprint == first.fingerprint
    assert all(Path(image).is_file() and tmp_path / "moved" in Path(image).parents for image in moved.images(0))


@pytest.mark.parametrize("all_of_them", [True, False])
def test_images_that_rows_bring_are_put_back_where_they_are_gone(
    place: Place, all_of_them: bool, caplog: pytest.LogCaptureFixture
) -> None:
    row = {**user_assistant("<image> <image>?", "a"), "images": [url(place, "0.png"), url(place, "1.png")]}
    first = place.tokenise(row)
    if all_of_them:
        shutil.rmtree(kept_images())
    else:
        Path(first.images(0)[1]).unlink()
    again = place.tokenise(row)
    assert place.ids(again) == place.ids(first) and again.images(0) == first.images(0)
    assert all(Path(image).is_file() for image in again.images(0))
    assert f"{'2 images' if all_of_them else '1 image'} that its rows brought" in caplog.text


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        ("data:image/png;base64,iVBOR&", "base64 is damaged"),
        ("data:image/png;base64,iVBOR", "base64 is damaged"),
        ("data:audio/wav;base64,AAAA", "audio/wav"),
        ("data:;base64", "no data: URL"),
        ("data:image/png;base64,aGFsbG8gd2VsdA==", "no image that can be read"),
    ],
)
def test_bad_images_in_rows_are_named(place: Place, image: str, reason: str) -> None:
    with pytest.raises(DataError) as caught:
        place.tokenise({**user_assistant("<image>", "a"), "images": [image]})
    assert reason in caught.value.problems[0].what and len(caught.value.problems[0].what) < 200
    source = SourceSpec(path=place.write({**user_assistant("<image>", "a"), "images": [image]}))
    report = check([source], CheckOptions(images=True))
    assert report.counts.bad == 1 and reason in report.problems[0].problem.what


def test_no_image_token_is_ever_trained(place: Place) -> None:
    """Nor the tags that the chat template prints around an image."""
    rows = [
        {**user_assistant("a<image>b<image>", "c"), "images": ["0.png", "1.png"]},
        {**user_assistant("<image>draw", "one<image><image>two"), "images": ["0.png", "1.png", "2.png"]},
    ]
    dataset = place.tokenise(*rows, assistant_only_loss=False)
    tags = place.tokenizer.convert_tokens_to_ids(["<|vision_start|>", "<|vision_end|>"])
    for i, row in enumerate(rows):
        ids, mask = dataset.row(i)
        of_image = ids == place.vision.image_token_id
        assert of_image.sum() == sum(place.vision.tokens(Image.open(place.folder / name)) for name in row["images"])
        around = [token in tags for token in ids.tolist()]
        assert sum(around) == 2 * len(row["images"])
        expected = [
            i > 0 and not image and not tag for i, (image, tag) in enumerate(zip(of_image, around, strict=True))
        ]
        assert mask.tolist() == expected
    assert place.trained(place.tokenise(rows[1]), 0) == "onetwo<|im_end|>"


def test_grey_of_16_bits_is_counted(place: Place) -> None:
    """Servers clip it to white."""
    Image.new("I;16", (64, 64), 1000).save(place.folder / "deep.png")
    rows = [{**user_assistant("<image>q", "a"), "images": [name]} for name in ("deep.png", "0.png", "deep.png")]
    assert place.tokenise(*rows).stats.notes == {DEEP_GREY: 2}


def test_a_cut_never_goes_through_an_image_or_before_one(place: Place) -> None:
    row = {**user_assistant("<image>", "the first", "<image>", "the second answer"), "images": ["0.png", "1.png"]}
    whole = place.tokenise(row)
    ids, mask = whole.row(0)
    last = int((ids == place.vision.image_token_id).nonzero()[0].max())
    assert mask[:last].any()  # so without its own rule the row would be cut
    other = user_assistant("Ping", "Pong")
    for length in (last - 30, last, last + 1, last + 2):
        dataset = place.tokenise(row, other, max_length=length)
        assert len(dataset) == 1 and dataset.stats.dropped == {"image_cut_off": 1}, length
    for length in (last + 3, len(ids) - 1):
        dataset = place.tokenise(row, other, max_length=length)
        assert dataset.stats.truncated == 1 and place.ids(dataset)[0] == ids[:length].tolist()
        assert dataset.row(0)[1].tolist() == mask[:length].tolist()
    assert place.tokenise(row, max_length=len(ids)).stats.truncated == 0
    dropping = place.tokenise(row, other, max_length=last, over_length="drop")
    assert dropping.stats.dropped == {"over_length": 1}
    with pytest.raises(DataError, match="lower data.image_max_tokens"):
        place.tokenise(row, max_length=last)


def test_a_row_of_megabytes_whose_image_is_behind_the_cut(place: Place) -> None:
    row = {**user_assistant("harbour town " * 200_000 + "<image>", "a"), "images": ["0.png"]}
    dataset = place.tokenise(row, user_assistant("Ping", "Pong"), max_length=64)
    assert dataset.stats.dropped == {"image_cut_off": 1}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({**user_assistant("<image>", "a"), "images": ["gone.png"]}, "no such image"),
        ({**user_assistant("<image>", "a"), "images": ["/etc/0.png"]}, "not below the image root"),
        ({**user_assistant("<image>", "a"), "images": ["../0.png"]}, "goes up"),
        ({**user_assistant("<image>", "a"), "images": ["http://x/0.png"]}, "is a URL"),
        ({**user_assistant("<image>", "a"), "images": ["page.png"]}, "HTML page"),
        ({**user_assistant("<image>", "a"), "images": ["line.png"]}, "aspect ratio"),
        (user_assistant("say <|image_pad|>", "a"), "own token <|image_pad|>"),
        ({**user_assistant("<image> <|image_pad|>", "a"), "images": ["0.png"]}, "own token <|image_pad|>"),
        (user_assistant("say", "<|video_pad|>"), "own token <|video_pad|>"),
        (user_assistant("say <|vision_end|>", "a"), "own token <|vision_end|>"),
        ({**user_assistant("<image><|vision_start|>", "a"), "images": ["0.png"]}, "own token <|vision_start|>"),
    ],
)
def test_bad_rows_are_named(place: Place, row: dict[str, Any], reason: str) -> None:
    (place.folder / "page.png").write_text("<html>404</html>")
    Image.new("RGB", (900, 2)).save(place.folder / "line.png")
    with pytest.raises(DataError) as caught:
        place.tokenise(user_assistant("q", "a"), row, user_assistant("q", "a"))
    (problem,) = caught.value.problems
    assert problem.where == f"{place.folder}/rows.jsonl:2" and reason in problem.what


def test_an_image_over_the_limit_is_named(place: Place, files: Path) -> None:
    place.vision = vision_of(files, max_tokens=4)
    Image.new("RGB", (3000, 32)).save(place.folder / "strip.png")
    with pytest.raises(DataError, match=r"more than data.image_max_tokens \(4\)"):
        place.tokenise({**user_assistant("<image>", "a"), "images": ["strip.png"]})


def test_a_template_that_leaves_images_out(place: Place) -> None:
    place.tokenizer = copy.deepcopy(place.tokenizer)
    place.tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for p in m.content if p.type == 'text' %}{{ p.text }}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    )
    with pytest.raises(DataError, match="prints 0 places for 1 image"):
        place.tokenise({**user_assistant("<image>hi", "a"), "images": ["0.png"]})


def test_the_plain_template_says_that_it_has_no_place_for_them(place: Place) -> None:
    place.tokenizer = copy.deepcopy(place.tokenizer)
    place.tokenizer.chat_template = read_template("plain", place.tokenizer)
    place.tokenise(user_assistant("no image", "none is needed"))
    with pytest.raises(DataError, match="the chat template says: the plain template has no place for images"):
        place.tokenise({**user_assistant("<image>What is it?", "seven"), "images": ["0.png"]})


def test_a_language_model_sees_no_images(place: Place) -> None:
    place.tokenizer = family_tokenizer("qwen3")
    row = {**user_assistant("<image>hi", "a"), "images": ["0.png"]}
    with pytest.raises(DataError, match="a language model sees none"):
        place.tokenise(row, vision=None)


def test_images_are_below_the_image_root_of_their_source(place: Place, tmp_path: Path) -> None:
    draw(tmp_path / "elsewhere", [(320, 320)])
    path = place.write({**user_assistant("<image>", "a"), "images": ["./0.png"]})
    rules = TokenRules(vision=place.vision.rules)
    here = prepare([SourceSpec(path=path)], place.tokenizer, rules, place.cache)
    there = prepare(
        [SourceSpec(path=path, image_root=str(tmp_path / "elsewhere"))], place.tokenizer, rules, place.cache
    )
    assert here.images(0) == (str(place.folder / "0.png"),)
    assert there.images(0) == (str(tmp_path / "elsewhere" / "0.png"),)
    assert len(there.row(0)[0]) > len(here.row(0)[0]) and here.fingerprint != there.fingerprint


def test_rows_are_compared_with_serving_wherever_their_images_are(place: Place, tmp_path: Path) -> None:
    draw(tmp_path / "elsewhere", [(320, 320)])
    path = place.write({**user_assistant("<image>", "a"), "images": ["0.png"]})
    (place.folder / "0.png").unlink()
    rules = TokenRules(vision=place.vision.rules)
    parts = take_apart(place.tokenizer)
    source = SourceSpec(path=path, image_root=str(tmp_path / "elsewhere"))
    report = check([source], CheckOptions(tokens=Tokens(parts, rules), samples=9))
    assert report.ok
    found = compare(report.samples, parts, rules, partial(served_prompt, place.tokenizer))
    assert (found.rows, found.answers) == (1, 1)


def test_what_decides_the_tokens_decides_the_fingerprint(place: Place, files: Path) -> None:
    row = {**user_assistant("<image>", "a"), "images": ["3.png"]}
    first, again = place.tokenise(row), place.tokenise(row)
    assert first.directory == again.directory
    text_only = place.tokenise(user_assistant("q", "a"))
    assert place.tokenise(user_assistant("q", "a"), vision=None).fingerprint != text_only.fingerprint
    place.vision = vision_of(files, max_tokens=20)
    smaller = place.tokenise(row)
    assert smaller.fingerprint != first.fingerprint and len(smaller.row(0)[0]) < len(first.row(0)[0])
    other_pixels = TokenRules(vision=replace(place.vision.rules, fingerprint="another mean of pixels"))
    of_those = prepare([SourceSpec(path=place.write(row))], place.tokenizer, other_pixels, place.cache)
    assert (of_those.digests == smaller.digests).all() and of_those.fingerprint != smaller.fingerprint


def test_equal_rows_with_other_images_are_not_duplicates(place: Place) -> None:
    Image.open(place.folder / "0.png").rotate(90).save(place.folder / "turned.png")
    same = user_assistant("<image>", "a")
    dataset = place.tokenise(*({**same, "images": [name]} for name in ("0.png", "turned.png", "0.png")))
    assert dataset.digests[0] == dataset.digests[2] != dataset.digests[1]
    assert place.ids(dataset)[0] == place.ids(dataset)[1]


def test_a_worker_of_its_own_makes_the_same(place: Place) -> None:
    row = json.dumps({**user_assistant("<image>hi", "a"), "images": ["1.png"]}).encode()
    task = Task(Chunk(0, 1, row + b"\n"), "auto", True, None, str(place.folder))
    rules = TokenRules(vision=place.vision.rules)
    make: Callable[[], Any] = partial(chunk_encoder, take_apart(place.tokenizer), rules)
    (here,), (there,) = ordered_map(make, [task], 1), ordered_map(make, [task], 2)
    assert there.block.input_ids.tolist() == here.block.input_ids.tolist()
    assert [file.path for (file,) in there.block.images] == [str(place.folder / "1.png")]


def test_workers_that_see_no_image_are_light(place: Place) -> None:
    code = (
        "import pickle, sys; from rankzero.data.cache.encode import chunk_encoder;"
        "work = chunk_encoder(*pickle.load(sys.stdin.buffer));"
        "print(sorted({'torch', 'transformers', 'PIL'} & set(sys.modules)))"
    )
    sent = pickle.dumps((take_apart(place.tokenizer), TokenRules(vision=place.vision.rules)))
    done = subprocess.run([sys.executable, "-c", code], input=sent, capture_output=True, check=True)
    assert done.stdout == b"[]\n"


def test_a_template_that_reads_lists_alone(tmp_path: Path, own_cache: Path) -> None:
    """LLaVA's prints nothing of contents that are text."""
    draw(tmp_path / "data", SIZES)
    vision = vision_of(llava_files(tmp_path / "model"))
    tokenizer = vision.rules.place.load().tokenizer
    tokenizer.chat_template = vision.chat_template
    place = Place(vision, tokenizer, tmp_path / "data", own_cache)
    rows = [{**user_assistant("<image>\nwhich?", "seven legs"), "images": ["3.png"]}, user_assistant("Ping", "Pong")]
    turns = [
        [{"role": "user", "content": parts(None, "\nwhich?")}, {"role": "assistant", "content": parts("seven legs")}],
        [{"role": role, "content": parts(text)} for role, text in (("user", "Ping"), ("assistant", "Pong"))],
    ]
    dataset = place.tokenise(*rows)
    eos = tokenizer.eos_token_id
    expected = [place.expected(turn, images) for turn, images in zip(turns, (["3.png"], []), strict=True)]
    assert place.ids(dataset) == [[*tokenizer(tokenizer.decode(ids).rstrip())["input_ids"], eos] for ids in expected]
    assert place.ids(dataset)[0].count(vision.image_token_id) == 16
    assert [place.trained(dataset, i) for i in range(2)] == [" seven legs</s>", " Pong</s>"]


def test_rules_are_small_to_send(place: Place) -> None:
    sent = pickle.dumps(replace(TokenRules(), vision=place.vision.rules))
    assert len(sent) < 2000 and pickle.loads(sent).vision == place.vision.rules  # noqa: S301  made here


def test_rows_that_share_an_image_or_a_conversation_are_never_parted(place: Place) -> None:
    """Whichever of a row's images it is, and also where their conversations have names of their own."""
    given = [
        (["0.png", "1.png"], "a"),
        (["2.png", "1.png"], "b"),
        (["3.png"], "c"),
        ([], "b"),
        ([], "d"),
        (["3.png"], None),
        (["./2.png"], None),
        ([], None),
    ]
    rows = [
        {**user_assistant("<image>" * len(images) + f"q{i}", "a"), "images": images, "conversation_id": name}
        for i, (images, name) in enumerate(given)
    ]
    groups = place.tokenise(*rows).groups.tolist()
    assert [groups.index(group) for group in groups] == [0, 0, 2, 0, 4, 2, 0, 7]
