"""spec.autoscaling: between how many replicas the operator may move, and how. Pure.

Called by `spec`. The CRD refuses most of what is refused here; an older CRD may not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from qwen_operator.autoscaling.tuning import DEFAULT_TUNING, Tuning
from qwen_operator.errors import InvalidSpecError
from qwen_operator.spec_fields import parse_integer, parse_object

Json = Mapping[str, Any]
_LEAST_RATIO, _LARGEST_RATIO = 0.05, 0.5
DEFAULT_IDLE_SECONDS = 300  # KEDA's cooldownPeriod is as long


class Provider(StrEnum):
    """Whose autoscaler sets the number of replicas."""

    BUILT_IN = "BuiltIn"
    KEDA = "KEDA"
    NONE = "None"


@dataclass(frozen=True, slots=True)
class Hold:
    """What is held of requests that find no ready pod: how many at a time, and how long each."""

    requests: int = 100
    seconds: int = 600


@dataclass(frozen=True, slots=True)
class AutoscalingSpec:
    """spec.autoscaling, where it is enabled. `behavior` is the HPA's own, as far as it is given.

    Attributes:
        target_free_ratio: of five replicas' KV blocks, free on average; cached ones are free.
        idle_seconds: without a request, before the last replica goes where min_replicas is 0.
    """

    max_replicas: int
    min_replicas: int = 1
    provider: Provider = Provider.BUILT_IN
    idle_seconds: int = DEFAULT_IDLE_SECONDS
    hold: Hold = Hold()
    target_free_ratio: float = DEFAULT_TUNING.free_ratio
    behavior: Json = field(default_factory=dict)

    @property
    def tuning(self) -> Tuning:
        """The decision's constants, with what the user set: a scale-in window is its look-back."""
        down = self.behavior.get("scaleDown") or {}
        window = down.get("stabilizationWindowSeconds", DEFAULT_TUNING.look_back_seconds)
        return replace(
            DEFAULT_TUNING,
            free_ratio=self.target_free_ratio,
            look_back_seconds=float(window),
            settle_seconds=min(DEFAULT_TUNING.settle_seconds, float(window)),
        )


def parse_autoscaling(found: Json) -> AutoscalingSpec | None:
    """Read spec.autoscaling; None where it is left out or disabled.

    Raises:
        InvalidSpecError: a field is missing or cannot be meant.
    """
    if not found or found.get("enabled", True) is False:
        return None
    most = parse_integer(found, "autoscaling.maxReplicas", least=1)
    if most is None:
        raise InvalidSpecError("spec.autoscaling.maxReplicas", "say how many replicas may be")
    least = parse_integer(found, "autoscaling.minReplicas", least=0, default=1) or 0
    if least > most:
        raise InvalidSpecError(
            "spec.autoscaling.minReplicas", f"{least} is above spec.autoscaling.maxReplicas {most}"
        )
    return AutoscalingSpec(
        max_replicas=most,
        min_replicas=least,
        provider=_provider(found.get("provider", Provider.BUILT_IN)),
        idle_seconds=parse_integer(
            found, "autoscaling.idleSeconds", least=1, default=DEFAULT_IDLE_SECONDS
        )
        or DEFAULT_IDLE_SECONDS,
        hold=_hold(parse_object(found, "autoscaling.hold")),
        target_free_ratio=_ratio(found.get("targetFreeRatio", DEFAULT_TUNING.free_ratio)),
        behavior=dict(parse_object(found, "autoscaling.behavior")),
    )


def _provider(value: Any) -> Provider:
    try:
        return Provider(value)
    except ValueError:
        raise InvalidSpecError(
            "spec.autoscaling.provider", f"{value!r} must be one of {', '.join(Provider)}"
        ) from None


def _hold(found: Json) -> Hold:
    default = Hold()
    limits = {
        name: parse_integer(found, f"autoscaling.hold.{name}", least=1, default=fallback)
        for name, fallback in (("requests", default.requests), ("seconds", default.seconds))
    }
    return Hold(**{name: limit for name, limit in limits.items() if limit is not None})


def _ratio(value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not _LEAST_RATIO <= value <= _LARGEST_RATIO:
        raise InvalidSpecError(
            "spec.autoscaling.targetFreeRatio",
            f"{value!r} must be a share from {_LEAST_RATIO} to {_LARGEST_RATIO}",
        )
    return float(value)
