"""Names of Services for pods: a DNS server that asks the API server, for a cluster's node only.

Started by the node's first process, on the node's own address, which kubelet tells pods. Knows
`SERVICE.NAMESPACE.svc.cluster.local`; every other name does not exist here, because nothing outside
the cluster can be reached from it. (Kubernetes' "DNS-Based Service Discovery" v1.1.0, A records.)
"""

import argparse
import json
import socket
import struct
import sys
from pathlib import Path
from typing import Any, NamedTuple

from tests.cluster.api_client import ApiClient
from tests.cluster.credentials import read_token
from tests.cluster.paths import RunDirectory

_SUFFIX = ("svc", "cluster", "local")
_TYPE_A, _CLASS_IN = 1, 1
_NO_ERROR, _NO_SUCH_NAME = 0, 3
_RESPONSE, _AUTHORITATIVE = 0x8000, 0x0400
_SECONDS_TO_LIVE = 5
_MAX_PACKET = 512  # RFC 1035, 4.2.1


class Question(NamedTuple):
    """What one packet asks for; `raw` is the question as it stands in the packet."""

    labels: tuple[str, ...]
    kind: int
    raw: bytes


def parse_question(packet: bytes) -> Question:
    """Return the first question of a DNS packet. Raises IndexError or struct.error if cut short."""
    labels, position = [], 12
    while length := packet[position]:
        labels.append(packet[position + 1 : position + 1 + length].decode("latin-1").lower())
        position += 1 + length
    (kind,) = struct.unpack_from("!H", packet, position + 1)
    return Question(tuple(labels), kind, packet[12 : position + 5])


def build_answer(packet: bytes, question: Question, addresses: list[str] | None) -> bytes:
    """Return the response: `addresses` as A records, None for a name that does not exist."""
    code = _NO_SUCH_NAME if addresses is None else _NO_ERROR
    wanted = addresses or [] if question.kind == _TYPE_A else []
    flags = _RESPONSE | _AUTHORITATIVE | (struct.unpack_from("!H", packet, 2)[0] & 0x0100) | code
    records = [
        struct.pack("!HHHIH", 0xC00C, _TYPE_A, _CLASS_IN, _SECONDS_TO_LIVE, 4)
        + socket.inet_aton(address)
        for address in wanted[: (_MAX_PACKET - 12 - len(question.raw)) // 16]
    ]
    return (
        packet[:2]
        + struct.pack("!HHHHH", flags, 1, len(records), 0, 0)
        + b"".join([question.raw, *records])
    )


def addresses_of(labels: tuple[str, ...], api: ApiClient) -> list[str] | None:
    """Return a Service's addresses (of a headless one: its pods'), None if there is none."""
    if len(labels) != 5 or labels[2:] != _SUFFIX:
        return None
    name, namespace = labels[:2]
    service = _read(api, f"/api/v1/namespaces/{namespace}/services/{name}")
    if service is None:
        return None
    address = service["spec"].get("clusterIP", "None")
    return [address] if address != "None" else _pod_addresses(api, namespace, name)


def _pod_addresses(api: ApiClient, namespace: str, service: str) -> list[str]:
    found = _read(
        api,
        f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        f"?labelSelector=kubernetes.io/service-name={service}",
    )
    endpoints = [e for s in (found or {"items": []})["items"] for e in s.get("endpoints") or []]
    ready = [e for e in endpoints if e.get("conditions", {}).get("ready", True)]
    return [address for endpoint in ready for address in endpoint["addresses"]]


def _read(api: ApiClient, path: str) -> dict[str, Any] | None:
    body = api.get(path)
    return None if body is None else json.loads(body)


def main() -> int:
    """Answer until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--server", required=True)
    args = parser.parse_args()
    run = RunDirectory(args.dir)
    authority = run.certificates / "apiserver.crt"
    api = ApiClient(args.server, token=read_token(run), authority=authority)
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((args.address, 53))
    while True:
        packet, sender = server.recvfrom(_MAX_PACKET)
        try:
            question = parse_question(packet)
        except (IndexError, struct.error):
            continue
        answer = build_answer(packet, question, addresses_of(question.labels, api))
        server.sendto(answer, sender)


if __name__ == "__main__":
    sys.exit(main())
