#!/bin/sh
# Builds the two images with docker or podman, whichever is here. TAG (default: the version that the
# chart asks for) and BASE (another Python image) may be set.
set -eu
cd "$(dirname "$0")/../.."
tag=${TAG:-$(sed -n 's/^appVersion: *"*\([^"]*\)"*$/\1/p' charts/qwen-operator/Chart.yaml)}
# `info` fails where only docker's client is installed and no engine runs
for builder in docker podman none; do
    "$builder" info >/dev/null 2>&1 && break
done
if [ "$builder" = none ]; then
    echo "error: neither docker nor podman works here: get one (Debian: apt-get install podman)" >&2
    exit 1
fi
for name in operator engine; do
    "$builder" build --file "docker/$name.Dockerfile" --tag "qwen-$name:$tag" \
        --build-arg "VERSION=$tag" --build-arg "REVISION=$(git rev-parse HEAD 2>/dev/null || true)" \
        ${BASE:+--build-arg "BASE=$BASE"} .
done
