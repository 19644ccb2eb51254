"""TensorBoard event files. Knows nothing of the run.

Records are written here and now, one for each step: torch's writer does it in a thread, whose death by a full disk is a
traceback on the console and an error at some later step.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from rankzero.track.protocol import TrackedRun, plotted_as


class TensorBoard:
    """Scalars into `directory`; events of steps from `step` on (from before a resume) are hidden. Raises OSError."""

    def __init__(self, directory: Path, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        directory.mkdir(parents=True, exist_ok=True)
        now = time.time()
        name = f"events.out.tfevents.{now:.6f}.{socket.gethostname()}.{os.getpid()}"
        self._records = RecordWriter((directory / name).open("ab", buffering=0))
        try:
            for event in (
                Event(wall_time=now, file_version="brain.Event:2"),
                Event(wall_time=now, step=step, session_log=SessionLog(status=SessionLog.START)),
            ):
                self._records.write(event.SerializeToString())
        except OSError:
            self.close()
            raise

    def log(self, step: int, values: dict[str, float]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        scalars = [
            Summary.Value(tag=plotted_as(name), simple_value=value)
            for name, value in values.items()
            if name not in {"time", "epoch"}
        ]
        event = Event(wall_time=time.time(), step=step, summary=Summary(value=scalars))
        self._records.write(event.SerializeToString())

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """All answers of a step as one text, in Markdown: the plugin shows them under its slider of steps."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
        from tensorboard.compat.proto.types_pb2 import DT_STRING
        from tensorboard.plugins.text.plugin_data_pb2 import TextPluginData

        text = "\n\n".join(f"**prompt**\n\n{_quoted(row['prompt'])}\n\n{_quoted(row['text'])}" for row in rows)
        content = TextPluginData(version=0).SerializeToString()
        plugin = SummaryMetadata.PluginData(plugin_name="text", content=content)
        shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
        tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode()], tensor_shape=shape)
        value = Summary.Value(tag="samples", tensor=tensor, metadata=SummaryMetadata(plugin_data=plugin))
        event = Event(wall_time=time.time(), step=step, summary=Summary(value=[value]))
        self._records.write(event.SerializeToString())

    def close(self) -> None:
        self._records.close()


def _quoted(text: str) -> str:
    """As it stands, whatever Markdown would make of it."""
    return "\n".join(f"    {line}" for line in text.splitlines() or [""])


def open_tracker(_setting: Literal[True], run: TrackedRun, step: int) -> TensorBoard:
    """Events of `run` into its own directory."""
    return TensorBoard(run.events, step)
