"""Where autoscalers ask: the metrics API for HPAs, and the figures for KEDA.

Called by `controller`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import datetime

from qwen_operator.cluster import Cluster
from qwen_operator.figures import FiguresServer, figures_path
from qwen_operator.metrics_api.registration import MetricsApi
from qwen_operator.metrics_api.server import MetricsServer
from qwen_operator.pods import Problem
from qwen_operator.scaling import Scaler
from qwen_operator.scaling_view import ScalingView
from qwen_operator.settings import Settings
from qwen_operator.spec_autoscaling import Provider

_NO_METRICS_API = Problem(
    "MetricsApiOff",
    "this operator was installed without its metrics API, so the HorizontalPodAutoscaler finds no "
    "figure: turn it on (chart: metricsApi.enabled), or set spec.autoscaling.provider to KEDA, or "
    "to None to scale with prometheus-adapter",
)


class Outlets:
    """Serves what the scaler decides, each where the settings want it."""

    def __init__(
        self,
        cluster: Cluster,
        settings: Settings,
        scaler: Scaler,
        today: Callable[[], datetime],
    ) -> None:
        self._metrics_api: MetricsApi | None = None
        if settings.metrics_place is not None:
            server = MetricsServer(settings.metrics_port, scaler.figures)
            self._metrics_api = MetricsApi(cluster, settings.metrics_place, server, today)
        self._figures_url = settings.figures_url
        self._figures: FiguresServer | None = None
        if self._figures_url is not None:
            self._figures = FiguresServer(settings.figures_port, scaler.wish, scaler.series.render)

    async def register(self) -> bool:
        """Keep the metrics API registered; return whether what is wrong with it has changed."""
        return self._metrics_api is not None and await self._metrics_api.check()

    async def serve_figures(self) -> None:
        """Listen for KEDA. Raises OSError."""
        if self._figures is not None:
            await self._figures.listen()

    async def close(self) -> None:
        """Stop serving."""
        if self._metrics_api is not None:
            await self._metrics_api.close()
        if self._figures is not None:
            await self._figures.close()

    def figures_url(self, namespace: str, name: str) -> str | None:
        """Return where KEDA asks for a QwenDeployment; None if it is not served."""
        return (
            None if self._figures_url is None else self._figures_url + figures_path(namespace, name)
        )

    def seen_through(self, view: ScalingView | None, provider: str | None) -> ScalingView | None:
        """Return what is decided with what keeps it from its autoscaler; None if not known yet."""
        if provider in (Provider.KEDA, Provider.NONE):
            return view  # needs no metrics API
        if self._metrics_api is None:
            return dataclasses.replace(view or ScalingView(), problem=_NO_METRICS_API)
        problem = self._metrics_api.problem
        if view is None or (problem is not None and problem.reason == "Starting"):
            return None
        return dataclasses.replace(view, problem=problem)
