"""Folders of this machine as volume claims on a node of ours.

Called by the demo and the end-to-end tests. Pods see them through an ordinary PersistentVolume,
which restricted pod security admits where a hostPath in the pod would be refused.
"""

from pathlib import Path
from typing import Any

from tests.cluster.client import Cluster
from tests.cluster.polling import until


def offer_folder(cluster: Cluster, folder: Path, *, claim: str, namespace: str) -> None:
    """Make `claim` in `namespace` out of a folder, unless it is there; return once it is bound."""
    if cluster.exists("pvc", claim, "-n", namespace):
        return
    cluster.apply(*_manifests(folder, claim=claim, namespace=namespace))
    until(
        lambda: cluster.get("pvc", claim, "-n", namespace)["status"]["phase"] == "Bound",
        what=f"claim {claim} bound",
        within_seconds=30,
    )


def _manifests(folder: Path, *, claim: str, namespace: str) -> list[dict[str, Any]]:
    volume, size = f"{namespace}-{claim}", {"storage": "1Ti"}
    to_claim = {"name": claim, "namespace": namespace}
    volume_spec = {
        "capacity": size,
        "accessModes": ["ReadOnlyMany"],
        "persistentVolumeReclaimPolicy": "Retain",
        "storageClassName": "",
        "claimRef": to_claim,
        "hostPath": {"path": str(folder), "type": "Directory"},
    }
    claim_spec = {
        "accessModes": ["ReadOnlyMany"],
        "storageClassName": "",
        "volumeName": volume,
        "resources": {"requests": size},
    }
    kinds = (
        ("PersistentVolume", {"name": volume}, volume_spec),
        ("PersistentVolumeClaim", to_claim, claim_spec),
    )
    return [
        {"apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": spec}
        for kind, metadata, spec in kinds
    ]
