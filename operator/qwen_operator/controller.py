"""The loop around `reconcile`: fetch what is, carry out what is to be done, write the status.

Called by `handlers`, which add keys as the cluster changes. Everything is read anew for each pass,
so a lost or late event costs time and never correctness. Knows nothing of kopf.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from qwen_operator import cluster as api
from qwen_operator import names
from qwen_operator.activation import are_waiting, slice_name
from qwen_operator.cluster import Cluster
from qwen_operator.contract_check import ContractCheck
from qwen_operator.errors import ApiError, OperatorError, RefusedError, UnavailableError
from qwen_operator.events import build_events
from qwen_operator.gpu_nodes import GpuNodes
from qwen_operator.guards import fetch_guards
from qwen_operator.observed import Observed
from qwen_operator.outlets import Outlets
from qwen_operator.pods import parse_pods
from qwen_operator.presence import Presence
from qwen_operator.readings import Readings
from qwen_operator.reconcile import Outcome, news, reconcile, with_failure
from qwen_operator.resources import num_going
from qwen_operator.scale_in import DeletionCosts
from qwen_operator.scaling import Scaler
from qwen_operator.scaling_facts import read_facts
from qwen_operator.settings import Settings
from qwen_operator.work_queue import WorkQueue

Json = Mapping[str, Any]
Key = tuple[str, str]  # namespace, name
_WORKERS = 4
_REGISTRATION_SECONDS = 10.0  # between looks at who serves the metrics API
_HEARTBEAT: Key = ("", "")  # goes through the queue like any key, and proves that workers work
_MISSED_BEATS = 3
_NAMESPACE_GOES = "because it is being terminated"  # and all in it: nothing is made, or told
logger = logging.getLogger(__name__)


class Controller:
    """Keeps every QwenDeployment as its spec says."""

    def __init__(
        self,
        cluster: Cluster,
        settings: Settings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._clock = clock
        self._queue: WorkQueue[Key] = WorkQueue()
        self._nodes = GpuNodes(cluster, clock)
        self._readings = Readings()
        self._costs = DeletionCosts(cluster, self._readings, clock)
        self._scaler = Scaler(clock, _today, self._readings.hear)
        self._outlets = Outlets(cluster, settings, self._scaler, _today)
        self._contract = ContractCheck(cluster, self._scaler.silent, clock)
        self._keda = Presence(cluster, api.SCALED_OBJECT, clock)
        self._pools = Presence(cluster, api.INFERENCE_POOL, clock)
        self._known: set[Key] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._last_beat = clock()

    def start(self) -> None:
        """Start workers, resync and scraping in the running event loop."""
        self._last_beat = self._clock()
        loops = [self._work() for _ in range(_WORKERS)]
        loops.append(self._every(self._settings.resync_seconds, self._resync))
        loops.append(self._every(self._settings.scrape_seconds, self._scrape))
        loops.append(self._every(self._settings.autoscaling_seconds, self._scale))
        loops.append(self._every(_REGISTRATION_SECONDS, self._register))
        loops.append(self._every(_REGISTRATION_SECONDS, self._outlets.serve_figures))
        self._tasks = [asyncio.create_task(loop) for loop in loops]

    async def stop(self) -> None:
        """Stop at once; whatever was under way is taken up by the next start."""
        self._queue.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._readings.close()
        await self._scaler.close()
        await self._outlets.close()
        await self._contract.close()

    def add(self, namespace: str, name: str) -> None:
        """Have a QwenDeployment looked at soon."""
        self._known.add((namespace, name))
        self._queue.add((namespace, name))

    def observe_node(self, event_type: str | None, node: Json) -> None:
        """Take in a node's event; what nodes offer may be what some QwenDeployment waits for."""
        if self._nodes.observe(event_type, node):
            for key in self._known:
                self._queue.add(key)

    def check_alive(self) -> str:
        """Return how recently a worker reconciled.

        Raises:
            OperatorError: not recently enough; the operator should be restarted.
        """
        age = self._clock() - self._last_beat
        if age > _MISSED_BEATS * self._settings.resync_seconds:
            raise OperatorError(f"no reconciliation for {age:.0f} s: the workers are stuck")
        return f"reconciled {age:.0f} s ago"

    async def _every(self, seconds: float, action: Callable[[], Awaitable[None]]) -> None:
        """Do something so often, however long it takes itself; a little rest it always gives."""
        while True:
            begun = self._clock()
            try:
                await action()
            except ApiError as error:
                logger.warning("%s", error)
            except Exception:
                logger.exception("a background task failed and goes on")
            await asyncio.sleep(max(seconds / 10, begun + seconds - self._clock()))

    async def _resync(self) -> None:
        self._queue.add(_HEARTBEAT)
        for namespace in self._settings.namespaces or (None,):
            for found in await self._cluster.fetch_all(api.QWEN_DEPLOYMENT, namespace):
                self.add(found["metadata"]["namespace"], found["metadata"]["name"])

    async def _scrape(self) -> None:
        for key in {*await self._readings.refresh(), *self._scaler.tell()}:
            self._queue.add(key)
        await self._costs.keep()

    async def _scale(self) -> None:
        for key in await self._scaler.refresh():
            self._queue.add(key)

    async def _register(self) -> None:
        if await self._outlets.register():
            for key in self._known:
                self._queue.add(key)

    async def _work(self) -> None:
        while True:
            key = await self._queue.get()
            failed = True
            try:
                failed = not await self._pass(key)
            except UnavailableError as error:
                logger.warning("%s/%s: the API does not answer: %s", *key, error)
            except ApiError as error:
                logger.warning("%s/%s: %s", *key, error)
            except Exception:
                logger.exception("%s/%s: reconciling failed; it will be tried again", *key)
            finally:
                self._scaler.tally.passes["failed" if failed else "done"] += 1
                self._queue.done(key, failed=failed)

    async def _pass(self, key: Key) -> bool:
        """Look at one key; return whether all is well."""
        self._last_beat = self._clock()
        if key == _HEARTBEAT:
            return True
        resource = await self._cluster.fetch(api.QWEN_DEPLOYMENT, *key)
        if resource is None:
            self._known.discard(key)
            self._readings.forget(key)
            self._scaler.follow(key, None)
            self._scaler.tally.forget(key)
            self._contract.forget(key)
            return True
        observed = await self._observe(key, resource)
        now = _now()
        outcome = reconcile(
            resource,
            observed,
            engine_image=self._settings.engine_image,
            vllm_image=self._settings.vllm_image,
            pod_defaults=self._settings.pod_defaults,
            now=now,
        )
        if outcome is None:
            return True
        try:
            if going := num_going(observed.deployment, outcome.apply):
                await self._costs.settle(key, going)
            outcome, is_applied = await self._carry_out(key, outcome, now)
            if outcome.scale is not None:
                await self._cluster.scale(resource, outcome.scale)
                logger.info("%s/%s: scaled to %d", *key, outcome.scale)
            self._scaler.tally.conditions[key] = outcome.status["conditions"]
            await self._publish(key, resource, outcome, now)
        except RefusedError as error:
            if _NAMESPACE_GOES in str(error):
                return True
            raise
        if outcome.look_again_seconds > 0:
            self._queue.add_later(key, outcome.look_again_seconds + 1)  # RFC 3339 has no fractions
        return is_applied

    async def _observe(self, key: Key, resource: Json) -> Observed:
        namespace, name = key
        selector = f"{names.OWNER_LABEL}={name}"
        scaling = resource["spec"].get("autoscaling") or {}
        may_be_zero = self._settings.has_activator and scaling.get("minReplicas") == 0
        children, (budget, policy, others) = await asyncio.gather(
            asyncio.gather(
                self._cluster.fetch(api.DEPLOYMENT, namespace, name),
                self._cluster.fetch(api.SERVICE, namespace, name),
                self._cluster.fetch(api.SERVICE_ACCOUNT, namespace, name),
                self._cluster.fetch(api.AUTOSCALER, namespace, name),
                self._cluster.fetch_all(api.POD, namespace, selector=selector),
                self._fetch_if(may_be_zero, api.ENDPOINT_SLICE, key),
            ),
            fetch_guards(self._cluster, key, resource["spec"]),
        )
        deployment, service, account, autoscaler, pods, activation = children
        has_keda, has_pools = await self._keda.is_there(), await self._pools.is_there()
        facts = parse_pods(pods)
        await self._readings.follow(key, facts)
        waiting = are_waiting(activation, _now())
        self._scaler.follow(key, read_facts(resource, deployment, facts, waiting=waiting))
        view = self._outlets.seen_through(self._scaler.view(key), scaling.get("provider"))
        scaled_object = await self._fetch_if(has_keda, api.SCALED_OBJECT, key)
        contract = None
        if view is not None and view.replicas is not None:
            contract = await self._contract.ask(key, autoscaler, scaled_object)
        on_gpu = ((resource["spec"].get("gpu") or {}).get("count", 1)) != 0
        return Observed(
            deployment=deployment,
            service=service,
            service_account=account,
            autoscaler=autoscaler,
            scaled_object=scaled_object,
            activation=activation,
            inference_pool=await self._fetch_if(has_pools, api.INFERENCE_POOL, key),
            budget=budget,
            other_budgets=others,
            network_policy=policy,
            engine_peers=self._settings.engine_peers,
            is_keda_there=has_keda,
            are_pools_there=has_pools,
            figures_url=self._outlets.figures_url(*key),
            pods=tuple(pods),
            nodes=await self._nodes.fetch() if on_gpu else (),
            readings=dict(self._readings.of(key)),
            scaling=view,
            contract=contract,
        )

    async def _fetch_if(self, wanted: bool, kind: api.Kind, key: Key) -> Json | None:
        if not wanted:
            return None
        name = slice_name(key[1]) if kind is api.ENDPOINT_SLICE else key[1]
        return await self._cluster.fetch(kind, key[0], name)

    async def _carry_out(self, key: Key, outcome: Outcome, now: str) -> tuple[Outcome, bool]:
        for manifest in outcome.apply:
            try:
                await self._cluster.apply(manifest)
            except RefusedError as error:
                if _NAMESPACE_GOES in str(error):
                    raise
                logger.warning("%s/%s: %s refused: %s", *key, manifest["kind"], error)
                return with_failure(outcome, f"{manifest['kind']}: {error}", now), False
            logger.info("%s/%s: applied its %s", *key, manifest["kind"])
        for live in outcome.delete:
            await self._cluster.delete(live)
            logger.info("%s/%s: deleted its %s", *key, live["kind"])
        return outcome, True

    async def _publish(self, key: Key, resource: Json, outcome: Outcome, now: str) -> None:
        if outcome.status != resource.get("status"):
            await self._cluster.apply_status(resource, outcome.status)
        for event in build_events(news(outcome), resource, now, reporter=names.FIELD_MANAGER):
            logger.info("%s/%s: %s: %s", *key, event["reason"], event["message"])
            try:
                await self._cluster.record(event)
            except ApiError as error:
                if _NAMESPACE_GOES in str(error):
                    raise
                logger.warning("%s/%s: the event could not be recorded: %s", *key, error)


def _today() -> datetime:
    return datetime.now(UTC)


def _now() -> str:
    return _today().strftime("%Y-%m-%dT%H:%M:%SZ")
