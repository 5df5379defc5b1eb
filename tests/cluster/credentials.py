"""What the components of one cluster present to each other: a token, a signing key, kubeconfigs.

Called by the supervisor. Writes files, starts nothing.
"""

import base64
import json
import secrets
from pathlib import Path

from tests.cluster.front_proxy import make_client
from tests.cluster.paths import RunDirectory

FRONT_PROXY = "front-proxy-client"

# RFC 5915: SEQUENCE { version 1, privateKey OCTET STRING (32), [0] OID prime256v1 }
_EC_KEY_HEAD = bytes.fromhex("303102010104 20".replace(" ", ""))
_EC_KEY_TAIL = bytes.fromhex("a00a06082a8648ce3d030107")
# A scalar with its top bits cleared is below the order of P-256, hence always a valid key.
_SCALAR_BITS = 255


def service_account_key() -> str:
    """Return a new P-256 private key as PEM; Go derives the public half from it."""
    scalar = (secrets.randbits(_SCALAR_BITS) or 1).to_bytes(32, "big")
    body = base64.encodebytes(_EC_KEY_HEAD + scalar + _EC_KEY_TAIL).decode()
    return f"-----BEGIN EC PRIVATE KEY-----\n{body}-----END EC PRIVATE KEY-----\n"


def write_credentials(run: RunDirectory) -> str:
    """Write service account key, front proxy and the administrator's token; return the token."""
    authority, client = make_client(run.path / "front-proxy", FRONT_PROXY)
    client.with_name("ca.crt").write_text(authority)
    token = secrets.token_hex(16)
    _write_private(run.path / "sa.key", service_account_key())
    _write_private(run.path / "tokens.csv", f"{token},admin,admin,system:masters\n")
    return token


def read_token(run: RunDirectory) -> str:
    """Return the administrator's token."""
    return (run.path / "tokens.csv").read_text().partition(",")[0]


def write_kubeconfig(path: Path, *, server: str, token: str, authority: Path) -> None:
    """Write a kubeconfig that is complete in itself: the authority's certificate is inside."""
    certificate = base64.b64encode(authority.read_bytes()).decode()
    name = "qwen-test"
    # JSON is YAML: every client reads it, and nothing need be quoted by hand
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": name,
                "cluster": {"server": server, "certificate-authority-data": certificate},
            }
        ],
        "users": [{"name": "admin", "user": {"token": token}}],
        "contexts": [
            {"name": name, "context": {"cluster": name, "user": "admin", "namespace": "default"}}
        ],
        "current-context": name,
    }
    _write_private(path, json.dumps(config, indent=1))


def _write_private(path: Path, content: str) -> None:
    path.touch(mode=0o600)
    path.write_text(content)
