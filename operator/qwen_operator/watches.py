"""Running kopf, alike for the operator and the activator: watches, liveness, nothing written.

Called by `__main__` and `activator.run`; what is watched, and what then happens, is their registry.
"""

from __future__ import annotations

import kopf

_REQUEST_SECONDS = 30


def quiet_settings() -> kopf.OperatorSettings:
    """Return kopf's settings: no peering, no own events, no look at what it need not see."""
    settings = kopf.OperatorSettings()
    settings.peering.standalone = True  # the chart runs one of each
    settings.posting.enabled = False  # `events` are ours
    settings.scanning.disabled = True  # no rights on namespaces and CRDs are needed
    settings.networking.request_timeout = _REQUEST_SECONDS
    return settings


async def watch(
    registry: kopf.OperatorRegistry,
    settings: kopf.OperatorSettings,
    *,
    namespaces: tuple[str, ...],
    health_port: int,
) -> None:
    """Feed the registry's handlers until cancelled or signalled.

    Args:
        namespaces: where to watch; empty means everywhere.
        health_port: where /healthz is answered, by the registry's probes.
    """
    await kopf.operator(
        registry=registry,
        settings=settings,
        standalone=True,
        clusterwide=not namespaces,
        namespaces=namespaces,
        liveness_endpoint=f"http://0.0.0.0:{health_port}/healthz",
    )
