"""`qwen-operator`: read settings, wire the parts, run kopf until a signal comes.

`qwen-operator activator` runs the activator instead, `qwen-operator self-test` what `helm test`
asks: the same image, another process.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys

from qwen_operator import self_test
from qwen_operator.activator.run import parse_activator_settings
from qwen_operator.activator.run import run as run_activator
from qwen_operator.controller import Controller
from qwen_operator.credentials import connect
from qwen_operator.errors import SettingsError
from qwen_operator.handlers import build_kopf_settings, build_registry
from qwen_operator.http_cluster import HttpCluster
from qwen_operator.settings import Settings, parse_settings
from qwen_operator.watches import watch

logger = logging.getLogger(__name__)


def main() -> None:
    """Run the operator, or the activator; exit with an error where its settings cannot be."""
    words = sys.argv[1:]
    if words[:1] == ["self-test"]:
        sys.exit(self_test.main())
    try:
        if words[:1] == ["activator"]:
            doorman = parse_activator_settings(words[1:], os.environ)
            _configure_logging(doorman.log_level)
            return asyncio.run(run_activator(doorman))
        settings = parse_settings(words, os.environ)
    except SettingsError as error:
        sys.exit(f"qwen-operator: {error}")
    _configure_logging(settings.log_level)
    return asyncio.run(run(settings))


async def run(settings: Settings) -> None:
    """Serve QwenDeployments until cancelled or signalled."""
    cluster = HttpCluster(connect)
    controller = Controller(cluster, settings)
    where = ", ".join(settings.namespaces) or "all namespaces"
    logger.info("serving QwenDeployments in %s with engine image %s", where, settings.engine_image)
    try:
        await watch(
            build_registry(controller, cluster, settings),
            build_kopf_settings(),
            namespaces=settings.namespaces,
            health_port=settings.health_port,
        )
    finally:
        await cluster.close()


def _configure_logging(level: str) -> None:
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    # kopf tells of every handler's success, and aiohttp of every probe: noise below debug
    for noisy in ("kopf", "aiohttp.access", "asyncio"):
        logging.getLogger(noisy).setLevel(level.upper() if level == "debug" else "WARNING")


if __name__ == "__main__":
    main()
