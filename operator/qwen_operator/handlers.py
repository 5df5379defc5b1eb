"""kopf's part: watches, credentials, liveness. Each handler only says which key to look at.

Called by `__main__`. Only event handlers are registered: kopf then adds no finalizer (deletion
never waits for the operator), keeps no annotations, and writes nothing to any object.
https://docs.kopf.dev/en/stable/events/
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import kopf

from qwen_operator import names
from qwen_operator.activation import MANAGED_BY, MANAGER
from qwen_operator.cluster import QWEN_DEPLOYMENT, Cluster
from qwen_operator.controller import Controller
from qwen_operator.crd import apply_crd
from qwen_operator.credentials import find_credentials
from qwen_operator.errors import RefusedError, UnavailableError
from qwen_operator.settings import Settings
from qwen_operator.watches import quiet_settings

Json = Mapping[str, Any]
_CHILDREN = (
    ("apps", "v1", "deployments"),
    ("", "v1", "pods"),
    ("", "v1", "services"),
    ("", "v1", "serviceaccounts"),
    ("autoscaling", "v2", "horizontalpodautoscalers"),
    ("policy", "v1", "poddisruptionbudgets"),
    ("networking.k8s.io", "v1", "networkpolicies"),
    ("discovery.k8s.io", "v1", "endpointslices"),
)
_RETRY_SECONDS = 5.0
_SOON_SECONDS = 0.5
logger = logging.getLogger(__name__)


def build_kopf_settings() -> kopf.OperatorSettings:
    """Return kopf's settings: children are watched by their label, and nothing is stored."""
    settings = quiet_settings()
    settings.process.ultimate_exiting_timeout = 10
    for group, version, plural in _CHILDREN:
        settings.watching.label_selectors[group, version, plural] = names.OWNER_LABEL
    # the activator's; those of the Services tell nothing that their pods do not
    slices = f"{names.OWNER_LABEL},{MANAGED_BY}={MANAGER}"
    settings.watching.label_selectors[_CHILDREN[-1]] = slices
    # nothing is ever stored; should a handler that stores be added, it must not use kopf's names
    settings.persistence.finalizer = f"{names.GROUP}/operator"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=names.GROUP)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=names.GROUP)
    return settings


def build_registry(
    controller: Controller, cluster: Cluster, settings: Settings
) -> kopf.OperatorRegistry:
    """Return the handlers that feed a controller."""
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    async def start(**_: Any) -> None:
        await _prepare(cluster, settings)
        controller.start()

    @kopf.on.cleanup(registry=registry)
    async def stop(**_: Any) -> None:
        await controller.stop()

    @kopf.on.login(registry=registry)
    def login(**_: Any) -> kopf.ConnectionInfo:
        return find_credentials()

    @kopf.on.probe(registry=registry, id="controller", errors=kopf.ErrorsMode.PERMANENT)
    async def probe(**_: Any) -> str:
        return controller.check_alive()

    @kopf.on.event(names.GROUP, names.VERSION, names.PLURAL, registry=registry)
    async def resource_changed(namespace: str | None, name: str, **_: Any) -> None:
        controller.add(namespace or "", name)

    async def child_changed(namespace: str | None, labels: Mapping[str, str], **_: Any) -> None:
        if owner := labels.get(names.OWNER_LABEL):
            controller.add(namespace or "", owner)

    for group, version, plural in _CHILDREN:
        kopf.on.event(group, version, plural, registry=registry, id=plural)(child_changed)

    @kopf.on.event("", "v1", "nodes", registry=registry)
    async def node_changed(event: Json, **_: Any) -> None:
        controller.observe_node(event["type"], event["object"])

    return registry


async def _prepare(cluster: Cluster, settings: Settings) -> None:
    """Apply the CRD as soon as the API answers, if that is the operator's work; wait for it."""
    while settings.installs_crd:
        try:
            await apply_crd(cluster)
            break
        except UnavailableError as error:
            logger.warning("the API does not answer: %s", error)
        await asyncio.sleep(_RETRY_SECONDS)
    # where there are no rights elsewhere, asking elsewhere is refused, CRD or no CRD
    await _wait_for_crd(cluster, next(iter(settings.namespaces), None))


async def _wait_for_crd(cluster: Cluster, namespace: str | None) -> None:
    """Wait until the API serves QwenDeployments: kopf looks for resources only once."""
    is_just_made = True  # it may be: then it is served a moment later
    while True:
        try:
            await cluster.fetch_all(QWEN_DEPLOYMENT, namespace)
            return
        except UnavailableError as error:
            logger.warning("the API does not answer: %s", error)
        except RefusedError as error:
            if error.status != 404:
                return  # not for lack of the CRD; the watch will say what is wrong
            if is_just_made:
                is_just_made = False
                await asyncio.sleep(_SOON_SECONDS)
                continue
            logger.error(
                "the API does not know QwenDeployments: install the CRD with `kubectl apply -f "
                "crds/qwendeployments.yaml`, or with the chart. Waiting."
            )
        await asyncio.sleep(_RETRY_SECONDS)
