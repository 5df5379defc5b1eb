#!/bin/sh
# Lints the chart with every values file that it ships and packs it into dist/.
set -eu
cd "$(dirname "$0")/../.."
helm=$(.venv/bin/python -m tests.cluster.tools helm)/helm
for values in charts/qwen-operator/ci/*.yaml; do
    "$helm" lint --strict --quiet charts/qwen-operator --values "$values"
done
"$helm" package charts/qwen-operator --destination dist
