"""FIRE trajectories as behaviour-cloning rows: one for each time step, or chats with a loss flag on each answer.

    state   the image, the question, the latest `max_history_rounds` attempts and the feedback on them
    action  the next attempt

The flattened state, exactly (attempts keep the numbers that they have in the whole trajectory):

    <image>\\nQuestion:\\n{question}\\n\\nAttempt {h}:\\n{attempt}\\n\\nFeedback {h}:\\n{feedback}…

Feedback that is missing is left out with its heading. The feedback on the last attempt is in no state. By default the
student sees the feedback without the score, as in the data set's own loop; `raw_feedback` shows the teacher's turn
whole. Attempts are cloned whole, thoughts included.

The multi-turn shape has the same steps: user question, assistant attempt, user feedback, … A step whose whole history
fits the window shares a row with the ones before it; a later step has a row of its own, with the latest rounds only.
In every row `loss` is true on the steps that it stands for, and false elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rankzero.data.rows.formats.unread import Reads
from rankzero.datasets.fire_rows import IMAGE_TAG, Round, Trajectory, read_trajectory
from rankzero.datasets.tally import Converted, Dropped, Tally

Shape = Literal["flattened", "multi-turn"]

HUB_ID = "PengxiangLi/FIRE"
FILE_NAME = "fire_bc_{split}.jsonl"
READS: Reads = {
    **dict.fromkeys(("id", "image", "images", "groundtruth", "raw"), {}),
    "question": {"value": {}},
    "conversations": {"from": {}, "role": {}, "type": {}, "value": {}},
}
"""With what is left out on purpose."""

_GAP = "attempts without feedback between them"


@dataclass(frozen=True, slots=True)
class FirePolicy:
    """Which steps are cloned, and how they are written."""

    max_history_rounds: int = 6
    skip_first: bool = False
    """Leave out the first attempt of each trajectory, which is often a bad answer: learn to correct alone."""
    min_score: int | None = None
    """Only attempts that the teacher scored at least this; one without a score is left out."""
    final_only: bool = False
    """Only the last attempt of each trajectory."""
    shape: Shape = "flattened"
    raw_feedback: bool = False


def convert(row: Mapping[str, Any], tally: Tally, policy: FirePolicy) -> Converted | Dropped:
    """The training rows of one raw row, without images and ids of their own."""
    trajectory = read_trajectory(row, tally.notes)
    if isinstance(trajectory, Dropped):
        return trajectory
    total = len(trajectory.rounds)
    tally.steps_in += total
    tally.histogram("rounds")[str(total)] += 1
    scores = tally.histogram("scores")
    for attempt in trajectory.rounds:
        scores["none" if attempt.score is None else str(attempt.score)] += 1
    if policy.shape == "multi-turn" and _has_gap(trajectory, policy):
        tally.steps_dropped[_GAP] += total
        return Dropped(_GAP, "a chat needs a user turn there")
    steps, left_out = chosen_steps(trajectory, policy)
    tally.steps_dropped.update(left_out)
    tally.steps_out += len(steps)
    if not steps:
        return Dropped("no step left", "the policies leave out every attempt")
    if policy.shape == "multi-turn":
        return Converted(_multi_turn(trajectory, steps, policy), len(steps))
    return Converted([_flattened(trajectory, step, policy) for step in steps], len(steps))


def chosen_steps(trajectory: Trajectory, policy: FirePolicy) -> tuple[list[int], Counter[str]]:
    """The time steps (from 0) that are cloned, and how many are not, by rule. The first rule that applies counts."""
    steps: list[int] = []
    left_out: Counter[str] = Counter()
    for step, attempt in enumerate(trajectory.rounds):
        if policy.final_only and step < len(trajectory.rounds) - 1:
            left_out["not the final attempt"] += 1
        elif policy.skip_first and step == 0:
            left_out["first attempt"] += 1
        elif policy.min_score is not None and attempt.score is None:
            left_out["no score"] += 1
        elif policy.min_score is not None and attempt.score is not None and attempt.score < policy.min_score:
            left_out["score below the minimum"] += 1
        else:
            steps.append(step)
    return steps, left_out


def state_of(trajectory: Trajectory, step: int, policy: FirePolicy) -> str:
    """What the student has before attempt `step` (from 0)."""
    text = f"{IMAGE_TAG}\nQuestion:\n{trajectory.question}"
    for index in range(max(0, step - policy.max_history_rounds), step):
        attempt = trajectory.rounds[index]
        text += f"\n\nAttempt {index + 1}:\n{attempt.attempt}"
        if feedback := _shown(attempt, policy):
            text += f"\n\nFeedback {index + 1}:\n{feedback}"
    return text


def _shown(attempt: Round, policy: FirePolicy) -> str:
    return attempt.feedback_raw if policy.raw_feedback else attempt.feedback


def _flattened(trajectory: Trajectory, step: int, policy: FirePolicy) -> dict[str, Any]:
    turns = [
        {"role": "user", "content": state_of(trajectory, step, policy)},
        {"role": "assistant", "content": trajectory.rounds[step].attempt},
    ]
    return {"id": f"t{step}", "messages": turns}


def _multi_turn(trajectory: Trajectory, steps: list[int], policy: FirePolicy) -> list[dict[str, Any]]:
    window = policy.max_history_rounds
    shared = [step for step in steps if step <= window]
    rows = [_chat(trajectory, 0, shared, policy)] if shared else []
    return rows + [_chat(trajectory, step - window, [step], policy) for step in steps if step > window]


def _chat(trajectory: Trajectory, first: int, steps: list[int], policy: FirePolicy) -> dict[str, Any]:
    """The rounds from `first` to the last of `steps`, trained on these steps."""
    turns: list[dict[str, Any]] = [{"role": "user", "content": f"{IMAGE_TAG}\n{trajectory.question}"}]
    for index in range(first, steps[-1] + 1):
        attempt = trajectory.rounds[index]
        turns.append({"role": "assistant", "content": attempt.attempt, "loss": index in steps})
        if index < steps[-1]:
            turns.append({"role": "user", "content": _shown(attempt, policy)})
    return {"id": f"t{steps[-1]}", "messages": turns}


def _has_gap(trajectory: Trajectory, policy: FirePolicy) -> bool:
    return not all(_shown(attempt, policy) for attempt in trajectory.rounds[:-1])
