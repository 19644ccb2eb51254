"""status: one verdict on a run, joined from its queue, its object, its pods, their ends and their logs. Pure."""

from rankzero.launch.status.judge import run_status, summarise
from rankzero.launch.status.model import NodeState, Phase, RunRow, RunStatus
from rankzero.launch.status.run_table import as_table
from rankzero.launch.status.text import as_text

__all__ = ["NodeState", "Phase", "RunRow", "RunStatus", "as_table", "as_text", "run_status", "summarise"]
