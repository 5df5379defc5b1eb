"""Writes what Python packages an image holds, as CycloneDX 1.6 JSON, from their own metadata.

Run at the end of a build: sbom.py DISTRIBUTION TARGET. Fifty lines instead of cyclonedx-bom, whose
twenty packages would have to be pinned and fetched for every build. What the base image holds is in
its own bill.
https://cyclonedx.org/docs/1.6/json/
"""

import json
import sys
from importlib.metadata import Distribution, distributions
from typing import Any


def bill(name: str) -> dict[str, Any]:
    """Return the bill of materials of this environment, made to run the distribution `name`."""
    found = {d.name.lower(): d for d in distributions()}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "container",
                "bom-ref": "image",
                "name": name,
                "version": found[name].version,
            }
        },
        "components": [_component(found[key]) for key in sorted(found)],
    }


def _component(distribution: Distribution) -> dict[str, Any]:
    # https://github.com/package-url/purl-spec: pypi names in lower case, dashes for underscores
    name = distribution.name.lower().replace("_", "-")
    purl = f"pkg:pypi/{name}@{distribution.version}"
    component = {
        "type": "library",
        "bom-ref": purl,
        "name": distribution.name,
        "version": distribution.version,
        "purl": purl,
    }
    return {**component, **_licence(distribution)}


def _licence(distribution: Distribution) -> dict[str, Any]:
    told = distribution.metadata
    if expression := told.get("License-Expression"):
        return {"licenses": [{"expression": expression}]}
    text = told.get("License") or ""
    classified = [
        c.rpartition(" :: ")[2] for c in told.get_all("Classifier") or () if "License" in c
    ]
    # some put the whole text there
    names = [text] if text and len(text) < 80 and "\n" not in text else classified
    return {"licenses": [{"license": {"name": name}} for name in names]} if names else {}


if __name__ == "__main__":
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump(bill(sys.argv[1]), file, indent=1)
