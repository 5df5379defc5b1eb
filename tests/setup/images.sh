#!/bin/sh
# Builds the two images with docker or podman, whichever is here. TAG (default: the version that the
# chart asks for) and BASE (another Python image) may be set.
set -eu
cd "$(dirname "$0")/../.."
tag=${TAG:-$(sed -n 's/^appVersion: *"*\([^"]*\)"*$/\1/p' charts/qwen-operator/Chart.yaml)}
builder=$(command -v docker || command -v podman) || {
    echo "error: neither docker nor podman found: get one (Debian: apt-get install podman)" >&2
    exit 1
}
for name in operator engine; do
    "$builder" build --file "docker/$name.Dockerfile" --tag "qwen-$name:$tag" \
        ${BASE:+--build-arg "BASE=$BASE"} .
done
