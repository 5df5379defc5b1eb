"""The cluster as `reconcile` sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from qwen_operator import resources
from qwen_operator.contract import Answers
from qwen_operator.node_facts import NodeFacts
from qwen_operator.scaling_view import ScalingView
from qwen_operator.status import Reading

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Observed:
    """The cluster as it is. Children are whatever carries the name, whoever owns it.

    Attributes:
        activation: the activator's EndpointSlice.
        budget: the PodDisruptionBudget.
        other_budgets: those of others in the namespace, where one is wanted.
        engine_peers: who must reach engines, as in a NetworkPolicy's `from`.
        is_keda_there: ScaledObjects are served.
        are_pools_there: InferencePools are served.
        figures_url: where KEDA may ask for this QwenDeployment's figures; None for nowhere.
        scaling: what is decided; None while this operator has not looked yet.
        contract: what was found of all that scaling reads; None where nothing was asked.
    """

    deployment: Json | None = None
    service: Json | None = None
    service_account: Json | None = None
    autoscaler: Json | None = None
    scaled_object: Json | None = None
    activation: Json | None = None
    inference_pool: Json | None = None
    budget: Json | None = None
    other_budgets: tuple[Json, ...] = ()
    network_policy: Json | None = None
    engine_peers: tuple[Json, ...] = ()
    is_keda_there: bool = False
    are_pools_there: bool = False
    figures_url: str | None = None
    pods: tuple[Json, ...] = ()
    nodes: tuple[NodeFacts, ...] = ()
    readings: Mapping[str, Reading] = field(default_factory=dict)
    scaling: ScalingView | None = None
    contract: Answers | None = None

    def owned_by(self, uid: str) -> Observed:
        """Return the state without children that belong to somebody else."""

        def ours(child: Json | None) -> Json | None:
            return child if child is not None and resources.is_owned(child, uid) else None

        return replace(
            self,
            deployment=ours(self.deployment),
            service=ours(self.service),
            service_account=ours(self.service_account),
            autoscaler=ours(self.autoscaler),
            scaled_object=ours(self.scaled_object),
            activation=ours(self.activation),
            inference_pool=ours(self.inference_pool),
            budget=ours(self.budget),
            network_policy=ours(self.network_policy),
        )
