"""The engines of a QwenDeployment's simulated pods, all equally full, and what its HPA says."""

from __future__ import annotations

from typing import Any

from tests.control_plane.engines import Engine, give_address
from tests.control_plane.qwen import Qwen


class Fleet:
    """The engines of a QwenDeployment's pods: every pod gets one, equally full."""

    def __init__(self, qwen: Qwen, name: str) -> None:
        self._qwen, self._name = qwen, name
        self._engines: dict[str, Engine] = {}
        self._free = 90
        self._raw: bytes | None = None
        self._redirect = ""

    @property
    def engines(self) -> dict[str, Engine]:
        """The engines, by pod."""
        return self._engines

    def replicas(self) -> int:
        """Give new pods their engines, and return how many are wanted."""
        for pod in self._qwen.all("pod"):
            name = pod["metadata"]["name"]
            if name not in self._engines and pod["status"].get("podIP"):
                self._engines[name] = Engine(self._free)
                self._say(self._engines[name])
                give_address(self._qwen, name, self._engines[name])
        count: int = self._qwen.get("deployment", self._name)["spec"]["replicas"]
        return count

    def fill(self, free: int) -> None:
        """Leave every engine so many of 100 blocks."""
        self._free = free
        for engine in self._engines.values():
            engine.free = free

    def say(self, raw: bytes | None, *, redirect: str = "") -> None:
        """Have every engine say this, or send away who asks; None: the truth again."""
        self._raw, self._redirect = raw, redirect
        for engine in self._engines.values():
            self._say(engine)

    def close(self) -> None:
        """Stop all engines."""
        for engine in self._engines.values():
            engine.close()

    def _say(self, engine: Engine) -> None:
        engine.raw, engine.redirect = self._raw, self._redirect


def is_scaling_active(qwen: Qwen) -> bool | None:
    """Return ScalingActive of the HPA of `chat`; None before it is known."""
    conditions: list[dict[str, Any]] = (
        qwen.get("hpa", "chat").get("status", {}).get("conditions", [])
    )
    return next((c["status"] == "True" for c in conditions if c["type"] == "ScalingActive"), None)
