"""A tiny model of few blocks, so that a few clients fill it; scaled with short windows."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tests.cluster.polling import until
from tests.e2e.served import AVAILABLE_SECONDS, Served
from tests.e2e.talkers import Talkers
from tests.models.tiny import build_tiny

SHAPE = "qwen3-tied"
# three streams of this length fill all blocks of a pod, more wait; a short one has two
LONG, FEW_BLOCKS = 90, {"blockSize": 16, "numGpuBlocksOverride": 24, "maxNumSeqs": 8}
FAST = {
    "scaleDown": {
        "stabilizationWindowSeconds": 5,
        "policies": [{"type": "Pods", "value": 10, "periodSeconds": 1}],
    }
}


class ScaledModel(Served):
    """A QwenDeployment of that model, between `minReplicas` and 3."""

    def apply_scaled(self, *, replicas: int | None = None, **autoscaling: Any) -> None:
        """Apply it."""
        model = build_tiny(SHAPE)
        self.apply_tiny(
            model,
            context={"maxModelLen": 128},
            engine={"overrides": FEW_BLOCKS},
            # half of five replicas' blocks free: one full pod then asks for all three
            autoscaling={
                "maxReplicas": 3, "targetFreeRatio": 0.5, "behavior": FAST, **autoscaling,
            },
            **({} if replicas is None else {"replicas": replicas}),
        )  # fmt: skip

    def replicas(self) -> int:
        """Return what it is scaled to."""
        found = self.cluster.get("qwen", self.name, "-n", self.namespace)
        count: int = found["spec"]["replicas"]
        return count

    def await_replicas(self, count: int, *, within: float = AVAILABLE_SECONDS) -> float:
        """Wait until it is scaled to so many; return the seconds that took."""
        start = time.monotonic()
        self._await(lambda: self.replicas() == count, f"{count} replicas", within)
        return time.monotonic() - start

    def await_ready(self, count: int) -> None:
        """Wait until so many pods answer."""
        self._await(
            lambda: self.status().get("readyReplicas") == count, f"{count} ready", AVAILABLE_SECONDS
        )

    def load(self) -> Talkers:
        """Return clients whose streams fill a pod's blocks, and more who wait for some."""
        return Talkers(self.url(), self.model(), clients=8, max_tokens=LONG)

    def light(self) -> Talkers:
        """Return a client who never has more than a few blocks."""
        return Talkers(self.url(), self.model(), clients=1, max_tokens=8)

    def _await(self, fact: Callable[[], bool], what: str, within: float) -> None:
        try:
            until(fact, what=f"{self.name}: {what}", within_seconds=within, every_seconds=0.3)
        except TimeoutError as error:
            described = self.kubectl("describe", "qwen,hpa")
            raise TimeoutError(f"{error}\n{described}") from None
