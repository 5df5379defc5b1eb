"""`qwen-operator activator`: read settings, watch, hold requests until a signal comes."""

from __future__ import annotations

import argparse
import ipaddress
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import kopf

from qwen_operator import names
from qwen_operator.activation import MANAGER
from qwen_operator.activator.reception import Reception
from qwen_operator.credentials import connect, find_credentials
from qwen_operator.errors import SettingsError
from qwen_operator.http_cluster import HttpCluster
from qwen_operator.watches import quiet_settings, watch

_ENDING_SECONDS = 150  # above what a door waits for the answers that are under way
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ActivatorSettings:
    """What the activator was told.

    Attributes:
        address: its pod's, where Services lead to.
        namespaces: whose QwenDeployments it serves; empty means everywhere.
    """

    address: str
    namespaces: tuple[str, ...]
    health_port: int
    log_level: str


def parse_activator_settings(argv: Sequence[str], env: Mapping[str, str]) -> ActivatorSettings:
    """Read flags and environment.

    Raises:
        SettingsError: a value cannot be; names the flag and the variable.
    """
    parser = argparse.ArgumentParser(prog="qwen-operator activator", description=__doc__)
    for flag, variable, default, text in (
        ("--address", "POD_IP", "", "this pod's address"),
        ("--namespaces", "QWEN_NAMESPACES", "", "comma-separated; empty: all"),
        ("--health-port", "QWEN_HEALTH_PORT", "8080", "port of /healthz"),
        ("--log-level", "QWEN_LOG_LEVEL", "info", "debug | info | warning | error"),
    ):
        parser.add_argument(flag, default=env.get(variable) or default, help=f"{text} [{variable}]")
    args = parser.parse_args(argv)
    try:
        address = str(ipaddress.ip_address(args.address))
    except ValueError:
        raise SettingsError(f"--address / POD_IP={args.address!r}: give an IP address") from None
    if not args.health_port.isdecimal():
        raise SettingsError(f"--health-port / QWEN_HEALTH_PORT={args.health_port!r}: give a port")
    if args.log_level not in ("debug", "info", "warning", "error"):
        raise SettingsError(f"--log-level / QWEN_LOG_LEVEL={args.log_level!r}: no such level")
    namespaces = tuple(sorted({n for n in args.namespaces.split(",") if n}))
    return ActivatorSettings(address, namespaces, int(args.health_port), args.log_level)


async def run(settings: ActivatorSettings) -> None:
    """Hold requests until cancelled or signalled."""
    cluster = HttpCluster(connect, field_manager=MANAGER)
    reception = Reception(cluster, settings.address, lambda: datetime.now(UTC))
    try:
        await watch(
            build_registry(reception),
            build_settings(),
            namespaces=settings.namespaces,
            health_port=settings.health_port,
        )
    finally:
        await cluster.close()


def build_settings() -> kopf.OperatorSettings:
    """Return kopf's settings: only EndpointSlices of QwenDeployments, and each at once."""
    settings = quiet_settings()
    settings.process.ultimate_exiting_timeout = _ENDING_SECONDS
    slices = ("discovery.k8s.io", "v1", "endpointslices")
    settings.watching.label_selectors[slices] = names.OWNER_LABEL
    return settings


def build_registry(reception: Reception) -> kopf.OperatorRegistry:
    """Return the handlers that feed a reception."""
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    async def start(**_: Any) -> None:
        reception.start()

    @kopf.on.cleanup(registry=registry)
    async def stop(**_: Any) -> None:
        await reception.stop()

    @kopf.on.probe(registry=registry, id="reception", errors=kopf.ErrorsMode.PERMANENT)
    async def probe(**_: Any) -> str:
        return reception.check_alive()

    @kopf.on.login(registry=registry)
    def login(**_: Any) -> kopf.ConnectionInfo:
        return find_credentials()

    @kopf.on.event(names.GROUP, names.VERSION, names.PLURAL, registry=registry)
    async def resource_changed(event: Any, namespace: str | None, name: str, **_: Any) -> None:
        there = None if event["type"] == "DELETED" else event["object"]
        await reception.see_resource((namespace or "", name), there)

    @kopf.on.event("discovery.k8s.io", "v1", "endpointslices", registry=registry)
    async def slice_changed(event: Any, **_: Any) -> None:
        reception.see_slice(event["object"], is_gone=event["type"] == "DELETED")

    return registry
