"""What a preparation Job leaves in the cache, so that the processes with GPUs only look it up."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from rankzero.data.read import hashing
from rankzero.engine import prepare
from rankzero.model.source import weights_fingerprint
from rankzero.spec.run_options import RunOptions
from tests.support.runs import small_spec


def test_of_a_stream_only_the_first_rows_are_looked_at(
    tmp_path: Path, tiny: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = small_spec(tmp_path, tiny, data__streaming=True, data__max_length=64, train__max_steps=5, eval__every=5)
    payload = {"spec": spec.model_dump(mode="json"), "options": asdict(RunOptions(log_level="INFO"))}
    (tmp_path / "payload.json").write_text(json.dumps(payload))
    monkeypatch.setattr(sys, "argv", ["prepare", str(tmp_path / "payload.json")])
    prepare.main()
    assert len([path for path in (own_cache / "tokenized").iterdir() if path.is_dir()]) == 1, "to evaluate"
    assert not (own_cache / "streams").exists()
    assert "rows to train on are streamed" in capsys.readouterr().err


def test_rows_are_tokenised_and_weights_are_hashed(
    tmp_path: Path, tiny: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashing, "REMEMBERED_BYTES", 0)
    monkeypatch.setattr(hashing, "_SETTLED_NS", -1)
    payload = {"spec": small_spec(tmp_path, tiny).model_dump(mode="json"), "options": asdict(RunOptions())}
    (tmp_path / "payload.json").write_text(json.dumps(payload))
    monkeypatch.setattr(sys, "argv", ["prepare", str(tmp_path / "payload.json")])
    prepare.main()
    assert len([path for path in (own_cache / "tokenized").iterdir() if path.is_dir()]) == 2, "to train, to evaluate"
    monkeypatch.setattr(hashing, "file_sha256", lambda path: pytest.fail(f"{path} is read again"))
    assert weights_fingerprint(tiny)
