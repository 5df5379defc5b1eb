"""MetricsContract: whether all that scaling reads is there, under the names it is read by. Pure.

Called by `status`; `contract_check` asks. A series that was renamed makes autoscaling go silent: no
error, and never another replica. So the queries of the scaler that is in force are asked as it asks
them, and every figure that the decision reads of an engine is missed by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from qwen_operator.conditions import Condition

CONDITION = "MetricsContract"
AGAIN_SECONDS = 15.0  # until the next look at what was found broken


@dataclass(frozen=True, slots=True)
class Answers:
    """What was asked, and what came.

    Attributes:
        asked: the scaler's queries; none where an autoscaler of somebody else scales.
        missing: by query, why it finds nothing.
        silent: by ready pod, why its figures are not used.
    """

    asked: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    silent: Mapping[str, str] = field(default_factory=dict)

    @property
    def are_whole(self) -> bool:
        """Whether nothing is missing."""
        return not self.missing and not self.silent


def contract_condition(answers: Answers, *, ready: int) -> Condition:
    """Return the condition; `ready` is the number of ready pods."""
    if answers.missing:
        told = "; ".join(f"{query}: {why}" for query, why in sorted(answers.missing.items()))
        message = f"what scales this QwenDeployment asks in vain: {told}"
        return Condition(CONDITION, False, "NoSeries", message)
    if answers.silent:
        pod, why = sorted(answers.silent.items())[0]
        message = (
            f"{len(answers.silent)} of {ready} ready pods tell not all that scaling reads of them; "
            f"{pod}: {why}"
        )
        return Condition(CONDITION, False, "BadFigures", message)
    if ready == 0:
        return Condition(CONDITION, None, "NothingToRead", "no pod is ready")
    queries = f"{' and '.join(answers.asked)} find a value, and " if answers.asked else ""
    message = f"{queries}all ready pods ({ready}) tell all that scaling reads of them"
    return Condition(CONDITION, True, "SeriesFound", message)
