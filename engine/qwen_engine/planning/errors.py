"""What planning can refuse, each with the data a caller needs to say it well.

PlanningError
├── InvalidConfigError        config.json lacks or contradicts a field
├── UnsupportedModelError     a model this version cannot run
├── UnknownModelError         an id without a known shape
├── UnknownGpuError           a node or product without enough facts
├── InvalidDemandError        a setting out of its range
└── DoesNotFitError           the ledger does not close
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


class PlanningError(ValueError):
    """A plan cannot be made; the message is fit to show to a user."""


class InvalidConfigError(PlanningError):
    """config.json lacks a field or holds a value that cannot be right."""

    def __init__(self, field: str, value: object, problem: str) -> None:
        super().__init__(f"config.json: {field}={value!r}: {problem}")
        self.field = field
        self.value = value
        self.problem = problem


class UnsupportedModelError(PlanningError):
    """The model is known, but this version cannot run it."""


class UnknownModelError(PlanningError):
    """The id is not in the catalogue, and nothing else gives the model's shape."""

    def __init__(self, model_id: str, *, asked: str = "") -> None:
        """Say so; `asked` is what the hub answered, if it was asked."""
        super().__init__(
            f"model {model_id!r} is not in the built-in catalogue"
            + (f", and the hub does not give it ({asked})" if asked else "")
            + ", so its shape is unknown. "
            "Give it in one of these ways: use a published id (`qwen-engine plan --list-models`), "
            "put the model's config.json under spec.model.config, or run "
            "`qwen-engine plan PATH` on a folder or a config.json"
        )
        self.model_id = model_id


class UnknownGpuError(PlanningError):
    """Neither labels nor the catalogue say how much memory the GPU has."""


class InvalidDemandError(PlanningError):
    """A demanded setting is out of its range."""

    def __init__(self, field: str, value: object, problem: str) -> None:
        super().__init__(f"{field}={value}: {problem}")
        self.field = field
        self.value = value


@dataclass(frozen=True, slots=True)
class WayOut:
    """One change that makes a model fit.

    Attributes:
        change: the demands it changes, by field; `model` and `gpu` name another of each.
    """

    kind: Literal["length", "pictures", "gpus", "precision", "gpu"]
    sentence: str
    change: Mapping[str, Any] = field(default_factory=dict)


class DoesNotFitError(PlanningError):
    """One request of the demanded length does not fit into memory.

    Attributes:
        largest_model_len: the longest context that fits with everything else unchanged; 0 if none.
        suggestion: the one change that makes it fit, as a sentence.
        ways: other changes, each of which alone makes it fit.
    """

    def __init__(
        self,
        message: str,
        *,
        largest_model_len: int,
        suggestion: str,
        ways: tuple[WayOut, ...] = (),
    ) -> None:
        said = suggestion.lower()
        sentences = (way.sentence for way in ways if way.kind != "length")
        others = [sentence for sentence in sentences if sentence.lower() not in said]
        also = f" Or: {'; '.join(others)}." if others else ""
        super().__init__(f"{message} {suggestion}{also}")
        self.largest_model_len = largest_model_len
        self.suggestion = suggestion
        self.ways = ways
