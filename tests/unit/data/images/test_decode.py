"""Every trap of image files, made here: what passes, what fails, and with which words."""

from __future__ import annotations

import io
import os
import random
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from PIL import Image, ImageFile

from rankzero.data.images import decode as decoding
from rankzero.data.images.check import check_images
from rankzero.data.images.decode import ImageError, ImageLimits, decode, image_size, load_rgb
from rankzero.errors import ConfigError, DataError


def encoded(image: Image.Image, format: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=format, **options)
    return buffer.getvalue()


def noise(size: tuple[int, int] = (48, 32)) -> Image.Image:
    return Image.effect_noise(size, 90).convert("RGB")


def fault(tmp_path: Path, data: bytes, name: str = "x.jpg", limits: ImageLimits | None = None) -> ImageError:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ImageError) as caught:
        decode(tmp_path / name, limits or ImageLimits())
    return caught.value


def pixels(tmp_path: Path, data: bytes, name: str = "x.jpg") -> Image.Image:
    (tmp_path / name).write_bytes(data)
    image = load_rgb(name, tmp_path)
    assert image.mode == "RGB"
    return image


def test_half_a_jpeg_passes_verify_and_fails_here(tmp_path: Path) -> None:
    data = encoded(noise((200, 200)), "JPEG")
    half = data[: len(data) // 2]
    Image.open(io.BytesIO(half)).verify()
    found = fault(tmp_path, half)
    assert found.reason == "damaged image" and "truncated" in found.what


def test_a_jpeg_whose_end_is_zeros(tmp_path: Path) -> None:
    data = encoded(noise((200, 200)), "JPEG")
    for kept in (len(data) // 2, len(data) - 2):
        assert fault(tmp_path, data[:kept] + bytes(len(data) - kept)).reason == "damaged image"
    half = len(data) // 2
    assert f"last {len(data) - half:,} bytes are zero" in fault(tmp_path, data[:half] + bytes(len(data) - half)).what
    assert pixels(tmp_path, data + bytes(100_000)), "behind its end there may be anything"
    assert pixels(tmp_path, data + b"a film" + bytes(9)), "as behind those of some cameras"
    thumbnail = encoded(noise((200, 200)), "JPEG", exif=b"Exif\0\0" + encoded(noise((8, 8)), "JPEG"))
    cut = thumbnail[: len(thumbnail) // 2] + bytes(len(thumbnail) // 2)
    assert fault(tmp_path, cut).reason == "damaged image", "the end of what lies in its head is not its own"


def png(image: Image.Image, *, rows: int | None = None, interlaced: bool = False, depth: int = 8) -> bytes:
    """A PNG of which only so many scanlines are in a compressed stream that is itself whole. `interlaced`: by Adam7."""
    colour, channels = {"1": (0, 1), "L": (0, 1), "P": (3, 1), "LA": (4, 2), "RGB": (2, 3), "RGBA": (6, 4)}[image.mode]
    width, height = image.size
    passes = [(0, 0, 1, 1)]
    if interlaced:
        passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
    lines = []
    for left, top, across, down in passes:
        for y in range(top, height, down):
            pixels = [image.getpixel((x, y)) for x in range(left, width, across)]
            if pixels:
                values = [value for pixel in pixels for value in (pixel if isinstance(pixel, tuple) else (pixel,))]
                if depth == 1:
                    bits = "".join("1" if value else "0" for value in values)
                    values = [int(bits[i : i + 8].ljust(8, "0"), 2) for i in range(0, len(bits), 8)]
                lines.append(bytes([0, *values]))
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, int(interlaced))
    palette = [(b"PLTE", bytes(range(256)) * 3)] if colour == 3 else []
    data = zlib.compress(b"".join(lines[:rows]))
    middle = len(data) // 2
    chunks = [(b"IHDR", header), *palette, (b"IDAT", data[:middle]), (b"IDAT", data[middle:]), (b"IEND", b"")]
    whole = b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + whole


@pytest.mark.parametrize("interlaced", [False, True])
@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGB", "RGBA"])
def test_a_png_with_some_of_its_rows_passes_everything_else_and_fails_here(
    tmp_path: Path, mode: str, interlaced: bool
) -> None:
    picture = noise((21, 19)).convert(mode) if mode != "P" else noise((21, 19)).quantize(200)
    depth = 1 if mode == "1" else 8
    whole = png(picture, interlaced=interlaced, depth=depth)
    assert pixels(tmp_path, whole, "whole.png").size == (21, 19)
    for rows in (1, 10, -1):
        part = png(picture, rows=rows, interlaced=interlaced, depth=depth)
        Image.open(io.BytesIO(part)).verify()
        assert fault(tmp_path, part, "part.png").reason == "damaged image"
    Image.open(io.BytesIO(half := png(picture, rows=10, interlaced=interlaced, depth=depth))).load()
    assert "of its pixels are not in the file" in fault(tmp_path, half, "part.png").what


def test_a_png_that_ends_in_black_is_whole(tmp_path: Path) -> None:
    for image in (Image.new("RGB", (30, 20)), Image.new("LA", (7, 1), (0, 255)), Image.new("L", (1, 1))):
        assert pixels(tmp_path, encoded(image, "PNG"), "black.png").getextrema() == ((0, 0),) * 3
        assert pixels(tmp_path, png(image, interlaced=True), "black.png").size == image.size


def test_a_flipped_bit_in_a_png_raises_what_is_no_oserror_and_is_caught(tmp_path: Path) -> None:
    data = bytearray(encoded(noise(), "PNG"))
    data[data.index(b"IDAT") + 40] ^= 0x10
    with pytest.raises(SyntaxError):
        Image.open(io.BytesIO(data)).verify()
    assert fault(tmp_path, bytes(data), "x.png").reason == "damaged image"


def test_a_damaged_chunk_name_of_a_png(tmp_path: Path) -> None:
    data = encoded(noise(), "PNG")
    at = data.index(b"IDAT")
    assert fault(tmp_path, data[:at] + b"\x01\x02\x03\x04" + data[at + 4 :], "x.png").reason == "damaged image"


@pytest.mark.parametrize(
    ("data", "reason", "words"),
    [
        (b"", "empty file", "empty"),
        (b"<!DOCTYPE html><html>404</html>", "not an image", "HTML page"),
        (b"\n<html><body>Sign in</body></html>", "not an image", "HTML page"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not an image", "SVG"),
        (b"version https://git-lfs.github.com/spec/v1\n", "not an image", "git lfs pull"),
        (b'{"error": "not found"}', "not an image", "JSON"),
        (b"\0\0\0 ftypavif" + b"\0" * 40, "not an image", "AVIF"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image", "no image"),
        (b"\x00\x01\x02\x03", "not an image", "no image"),
    ],
)
def test_impostors_are_named(tmp_path: Path, data: bytes, reason: str, words: str) -> None:
    found = fault(tmp_path, data)
    assert found.reason == reason and words in found.what


def test_the_suffix_does_not_decide(tmp_path: Path) -> None:
    assert pixels(tmp_path, encoded(noise(), "PNG"), "x.jpg").size == (48, 32)
    assert pixels(tmp_path, encoded(noise(), "WEBP"), "no_suffix").size == (48, 32)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "PA", "RGBA", "CMYK", "YCbCr", "LAB"])
def test_every_mode_becomes_rgb_and_one_pixel_is_enough(tmp_path: Path, mode: str) -> None:
    format = {"CMYK": "TIFF", "YCbCr": "TIFF", "LAB": "TIFF", "PA": "TIFF"}.get(mode, "PNG")
    image = Image.new("RGB", (1, 1), (200, 10, 10))
    try:
        data = encoded(image.convert("P").convert("PA") if mode == "PA" else _as(image, mode), format)
    except OSError:
        pytest.skip(f"Pillow writes no {mode} file")
    assert pixels(tmp_path, data).size == (1, 1)


def _as(image: Image.Image, mode: str) -> Image.Image:
    if mode != "LAB":
        return image.convert(mode)
    return Image.new("LAB", (1, 1), (50, 0, 0))


def test_16_bit_grey_is_scaled_and_not_clipped_to_white(tmp_path: Path) -> None:
    image = Image.new("I;16", (2, 1))
    image.putpixel((0, 0), 0x8000)
    image.putpixel((1, 0), 0x1000)
    grey = pixels(tmp_path, encoded(image, "PNG"), "x.png")
    assert [grey.getpixel((x, 0)) for x in (0, 1)] == [(128, 128, 128), (16, 16, 16)]


def test_16_bit_grey_of_the_other_byte_order(tmp_path: Path) -> None:
    """As GDAL, ImageJ and scanners write it."""
    image = Image.frombytes("I;16B", (2, 1), bytes([0x80, 0, 0x10, 0]))
    grey = pixels(tmp_path, encoded(image, "TIFF"), "x.tif")
    assert [grey.getpixel((x, 0)) for x in (0, 1)] == [(128, 128, 128), (16, 16, 16)]


def test_float_pixels_are_refused_because_their_range_is_unknown(tmp_path: Path) -> None:
    assert fault(tmp_path, encoded(Image.new("F", (2, 2), 0.5), "TIFF")).reason == "no RGB form"


def glass(mode: str) -> bytes:
    """A PNG of a clear pixel, whose colour nobody sees, and a black one."""
    image = Image.new("RGBA", (2, 1), (0, 0, 0, 0))
    image.putpixel((1, 0), (0, 0, 0, 255))
    if mode in ("RGBA", "LA"):
        return encoded(image.convert(mode), "PNG")
    clear: object = {"RGB": (9, 9, 9), "L": 9, "1": 1, "P": 1}[mode]
    marked = Image.new(mode, (2, 1), 0)
    if mode == "P":
        marked.putpalette([0, 0, 0, 9, 9, 9])
    marked.putpixel((0, 0), clear)  # type: ignore[arg-type]
    return encoded(marked, "PNG", transparency=255 if mode == "1" else clear)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "RGB", "L", "1", "P"])
def test_what_is_transparent_is_white_as_processors_and_servers_show_it(
    tmp_path: Path, mode: str, recwarn: pytest.WarningsRecorder
) -> None:
    shown = pixels(tmp_path, glass(mode), "x.png")
    assert [shown.getpixel((x, 0)) for x in (0, 1)] == [(255, 255, 255), (0, 0, 0)]
    assert not recwarn.list


def test_what_is_half_transparent_is_mixed_with_white(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    image = Image.new("P", (1, 1), 0)
    image.putpalette([9, 8, 7] * 256)
    assert pixels(tmp_path, encoded(image, "PNG", transparency=b"\x40")).getpixel((0, 0)) == (193, 193, 193)
    turned = Image.Exif()
    turned[0x0112] = 6
    data = encoded(Image.new("RGBA", (2, 1), (0, 0, 0, 0)), "WEBP", exif=turned, lossless=True)
    assert pixels(tmp_path, data).getcolors() == [(2, (255, 255, 255))]
    assert not recwarn.list


def test_marks_of_transparency_of_16_bits_a_channel_lose_no_picture(tmp_path: Path) -> None:
    image = Image.new("I;16", (2, 1), 0x8000)
    assert pixels(tmp_path, encoded(image, "PNG", transparency=0x8000), "x.png").size == (2, 1)
    header = struct.pack(">IIBBBBB", 1, 1, 16, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"tRNS", b"\xff\x00" * 3), (b"IDAT", zlib.compress(bytes(7))), (b"IEND", b"")]
    data = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )
    assert pixels(tmp_path, data, "y.png").getpixel((0, 0)) == (0, 0, 0)


def test_of_an_animation_the_first_frame(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert pixels(tmp_path, data, "x.gif").getpixel((0, 0)) == (255, 0, 0)


def test_exif_orientation_is_applied(tmp_path: Path) -> None:
    image = Image.new("RGB", (40, 20), "white")
    image.paste("black", (0, 0, 20, 20))  # the left half
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter to the right
    turned = pixels(tmp_path, encoded(image, "JPEG", exif=exif, quality=95))
    assert turned.size == (20, 40)
    assert turned.getpixel((10, 5))[0] < 60 < 200 < turned.getpixel((10, 35))[0]


def test_a_damaged_exif_note_does_not_lose_the_picture(tmp_path: Path) -> None:
    data = encoded(noise(), "JPEG", exif=b"Exif\0\0nonsense")
    assert pixels(tmp_path, data).size == (48, 32)


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few bytes that says that it is huge."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"\0" * 64)) + chunk(b"IEND", b"")


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("side", [9_000, 12_000, 60_000])
def test_bombs_are_refused_from_their_header(tmp_path: Path, side: int) -> None:
    """9,000² is over our limit only, 12,000² over Pillow's warning, 60,000² over its error."""
    found = fault(tmp_path, bomb(side, side), "x.png")
    assert (found.reason, found.hint) == ("too many pixels", "make it smaller") and "64,000,000" in found.what


def test_the_limit_is_the_callers_and_pillows_state_stays(tmp_path: Path) -> None:
    before = Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES
    data = encoded(noise((100, 100)), "PNG")
    found = fault(tmp_path, data, limits=ImageLimits(9_999))
    assert (found.reason, found.hint) == ("too many pixels", "make it smaller, or raise the limit")
    assert decode(tmp_path / "x.jpg", ImageLimits(10_000)).size == (100, 100)
    assert before == (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES)


def test_what_is_no_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")  # opening it would wait for ever
    (tmp_path / "folder.jpg").mkdir()
    report = check_images(["pipe.jpg", "folder.jpg", "none.jpg", "a" * 300 + ".jpg"], tmp_path)
    reasons = [problem.reason for problem in report.problems.values()]
    assert reasons == ["not a regular file", "not a regular file", "no such image", "unreadable file"]


def test_load_rgb_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        load_rgb("coco/none.jpg", tmp_path)
    assert caught.value.problems[0].where == str(tmp_path / "coco/none.jpg")
    with pytest.raises(DataError, match="goes up"):
        load_rgb("../x.jpg", tmp_path)


def test_without_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ConfigError) as caught:
        check_images(["x.jpg"], tmp_path)
    assert "rankzero[vision]" in caught.value.problems[0].hint


def test_pillow_is_not_loaded_by_import() -> None:
    code = "import sys, rankzero.datasets.images.resolve, rankzero.datasets.frame; print('PIL' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_mutated_files_give_pixels_or_a_reason_and_nothing_else(tmp_path: Path) -> None:
    """800 mutations of six formats: no other exception, no hang."""
    chance = random.Random(11)
    base = [encoded(noise((24, 16)), name) for name in ("JPEG", "PNG", "GIF", "WEBP", "BMP", "PPM")]
    file = tmp_path / "x"
    outcomes = set()
    for _ in range(800):
        data = bytearray(chance.choice(base))
        for _ in range(chance.randint(1, 5)):
            data[chance.randrange(min(len(data), 150))] = chance.randrange(256)
        if chance.random() < 0.3:
            del data[chance.randrange(1, len(data)) :]
        file.write_bytes(data)
        try:
            outcomes.add(decoding.decode(file, ImageLimits(1_000_000)).mode)
        except ImageError as error:
            outcomes.add(error.reason)
    assert {"RGB", "damaged image", "not an image"} <= outcomes


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF", "MPO"])
def test_the_head_tells_the_size_that_decoding_gives(tmp_path: Path, format: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = tmp_path / "x"
    file.write_bytes(encoded(noise((48, 32)), format, exif=exif))
    size = image_size(file, ImageLimits())
    assert size == decode(file, ImageLimits()).size == ((48, 32) if orientation < 5 else (32, 48))


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "GIF"])
def test_a_file_that_is_cut_off_is_known_before_training(tmp_path: Path, format: str) -> None:
    data = encoded(noise((200, 200)), format)
    (tmp_path / "whole").write_bytes(data)
    (tmp_path / "and more").write_bytes(data + b"notes of a camera")
    half = len(data) // 2
    for tail in (b"", bytes(len(data) - half)):
        (tmp_path / "half").write_bytes(data[:half] + tail)
        if format in ("WEBP", "GIF") and tail:
            continue  # as long as it should be, and only decoding tells
        with pytest.raises(ImageError) as caught:
            image_size(tmp_path / "half", ImageLimits())
        assert caught.value.reason == "damaged image"
    assert image_size(tmp_path / "whole", ImageLimits()) == image_size(tmp_path / "and more", ImageLimits())


def test_a_file_without_an_end_that_can_be_decoded_is_taken(tmp_path: Path) -> None:
    data = encoded(noise((200, 200)), "PNG")
    assert pixels(tmp_path, data[:-12], "x.png").size == image_size(tmp_path / "x.png", ImageLimits())


@pytest.mark.parametrize("mode", ["I", "F"])
def test_pixels_without_rgb_form_are_known_before_training(tmp_path: Path, mode: str) -> None:
    (tmp_path / "x").write_bytes(encoded(Image.new(mode, (2, 2)), "TIFF"))
    with pytest.raises(ImageError, match="no RGB form"):
        image_size(tmp_path / "x", ImageLimits())


def orientation_notes(orientation: int) -> dict[str, tuple[bytes, bytes]]:
    """Every chunk of a PNG in which Pillow finds an orientation."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    whole = exif.tobytes()
    profile = f"\nexif\n{len(whole):8}\n{whole.hex()}\n".encode()
    xmp = (
        f'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="{orientation}"/></x:xmpmeta>'.encode()
    )
    return {
        "exif": (b"eXIf", whole.removeprefix(b"Exif\0\0")),
        "xmp": (b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + xmp),
        "packed xmp": (b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + zlib.compress(xmp)),
        "profile": (b"tEXt", b"Raw profile type exif\0" + profile),
        "packed profile": (b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(profile)),
    }


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


@pytest.mark.parametrize("place", ["before", "behind", "behind the end"])
@pytest.mark.parametrize("note", orientation_notes(6))
@pytest.mark.parametrize("animated", [False, True])
def test_a_png_may_say_behind_its_pixels_how_it_is_turned(
    note: str, place: str, animated: bool, tmp_path: Path
) -> None:
    more = {"save_all": True, "append_images": [noise((48, 32))]} if animated else {}
    data = encoded(noise((48, 32)), "PNG", **more)
    for orientation in (6, 1):
        beside = chunk(b"tEXt", b"Comment\0" + b"x" * 50) + chunk(*orientation_notes(orientation)[note])
        first, last = data.index(b"IDAT") - 4, len(data) - 12
        at = {"before": first, "behind": last, "behind the end": len(data)}[place]
        if animated and place == "behind":
            at = data.index(b"fcTL", data.index(b"IDAT")) - 4
        file = tmp_path / "x.png"
        file.write_bytes(data[:at] + beside + data[at:])
        turned = orientation == 6 and place != "behind the end"
        assert decode(file, ImageLimits()).size == ((32, 48) if turned else (48, 32))
        assert image_size(file, ImageLimits()) == decode(file, ImageLimits()).size


def test_notes_of_another_frame_do_not_turn_the_first(tmp_path: Path) -> None:
    data = encoded(noise((48, 32)), "PNG", save_all=True, append_images=[noise((48, 32))])
    (tmp_path / "x.png").write_bytes(data[:-12] + chunk(*orientation_notes(6)["exif"]) + data[-12:])
    assert image_size(tmp_path / "x.png", ImageLimits()) == decode(tmp_path / "x.png", ImageLimits()).size == (48, 32)


def test_what_is_behind_the_pixels_may_be_damaged(tmp_path: Path) -> None:
    data = encoded(noise((48, 32)), "PNG")
    kind, note = orientation_notes(6)["packed profile"]
    broken = (chunk(b"zTXt", note[:22] + b"\7" + note[23:]), chunk(b"\0\0\0\0", b"")[:9])
    for damage in broken:
        (tmp_path / "x.png").write_bytes(data[:-12] + damage + data[-12:])
        assert image_size(tmp_path / "x.png", ImageLimits()) == (48, 32)
    (tmp_path / "x.png").write_bytes(data[:-12] + chunk(kind, note)[:30])
    with pytest.raises(ImageError, match="Truncated"):  # as decoding does
        image_size(tmp_path / "x.png", ImageLimits())


def test_the_size_is_told_without_decoding_and_within_limits(tmp_path: Path) -> None:
    data = encoded(noise((200, 100)), "PNG")
    half = len(data) // 2
    (tmp_path / "half.png").write_bytes(data[:half] + bytes(9) + data[half + 9 :])
    assert image_size(tmp_path / "half.png", ImageLimits()) == (200, 100)
    with pytest.raises(ImageError, match="more than the 19,999 that are allowed"):
        image_size(tmp_path / "half.png", ImageLimits(pixels=19_999))
    (tmp_path / "page.png").write_bytes(b"<html>")
    with pytest.raises(ImageError, match="HTML page"):
        image_size(tmp_path / "page.png", ImageLimits())
