#!/bin/sh
# Writes the table of values in its README and its dashboard, lints the chart with every values file and packs it into dist/.
set -eu
cd "$(dirname "$0")/../.."
.venv/bin/python -m tests.setup.chart_values
.venv/bin/python -m tests.setup.chart_dashboard
helm=$(.venv/bin/python -m tests.cluster.tools helm)/helm
for values in charts/qwen-operator/ci/*.yaml; do
    "$helm" lint --strict --quiet charts/qwen-operator --values "$values"
done
"$helm" package charts/qwen-operator --destination dist
