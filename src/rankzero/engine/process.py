"""A process that a launcher has started: what it is given, how it ends, and to whom it says why.

Knows nothing of what it does, and imports little of it: a test of a place needs no transformers.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rankzero.engine.console import print_result
from rankzero.engine.distributed import lost_a_peer
from rankzero.errors import INTERRUPTED, ExitCode, PeerLostError, RankzeroError, StorageError
from rankzero.redaction import Redactor
from rankzero.run_dir.handover import (
    ERROR_FILE_VARIABLE,
    PARENT_VARIABLE,
    STACK_FILE_VARIABLE,
    read_payload,
    room_for_a_start,
    write_error,
)
from rankzero.spec.run_options import RunOptions
from rankzero.spec.run_spec import RunSpec
from rankzero.stderr import write_stderr
from rankzero.wording import printable


def process(work: Callable[[RunSpec, RunOptions], dict[str, Any]]) -> None:
    """`python -m rankzero.start MODULE RUN.json`: what rankzero's own launcher starts, one for each process. `work`
    makes its report.

    Errors go to a file and are printed by the launcher, once and for the process that failed first: peers of a dead
    process fail too, and theirs would only bury the cause.
    """
    die_with_parent()
    tell_where_on_request()
    try:
        report = work(*read_payload(Path(sys.argv[1]).read_text(encoding="utf-8")))
    except Exception as error:
        sys.exit(hand_over(error))
    except KeyboardInterrupt:  # before the run listens itself
        sys.exit(INTERRUPTED)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # the outcome is decided; the interpreter takes a moment to end
    if os.environ.get("RANK", "0") == "0":
        print_result(json.dumps(report))


def hand_over(error: Exception) -> int:
    """Write the error where the launcher reads it; to standard error where there is no room. Returns the exit code."""
    if isinstance(error, RankzeroError):
        known, trace = error, ""
    elif lost_a_peer(error):
        known, trace = PeerLostError(f"another process is gone, or does not answer: {error}"), ""
    else:
        known = RankzeroError(f"internal error: {type(error).__name__}: {error}")
        trace = traceback.format_exc()
    redact = Redactor(os.environ)
    try:
        with room_for_a_start():
            write_error(Path(os.environ[ERROR_FILE_VARIABLE]), known, trace, redact)
    except StorageError as unwritten:  # the launcher keeps the exit code, and what it has of these lines
        write_stderr(redact(printable(f"{known}\n{trace}\nnot handed over: {unwritten}\n")))
    return known.exit_code


def tell_where_on_request() -> None:
    """On SIGUSR1 write the stacks of all threads, also from within a call that never returns."""
    faulthandler.enable()  # of a crash in C, the place on standard error
    path = os.environ.get(STACK_FILE_VARIABLE)
    if path is not None:
        faulthandler.register(signal.SIGUSR1, file=open(path, "w"), all_threads=True)  # noqa: SIM115 - open till the end


def die_with_parent() -> None:
    """No orphans: ask Linux to kill this process when its launcher dies, however it dies."""
    parent = os.environ.get(PARENT_VARIABLE)
    if parent is None or sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != int(parent):
        sys.exit(ExitCode.STOPPED)
