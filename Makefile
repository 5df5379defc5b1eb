# `make` alone lists what there is. Targets set up what they need themselves: see tests/setup/.
SHELL := /bin/sh
.DEFAULT_GOAL := help
SETUP := tests/setup/install.sh
PY := .venv/bin/python
PYTEST := $(PY) -m pytest
LAYERS := unit contract parity control-plane chart images cluster e2e ecosystem
MODEL ?= HuggingFaceTB/SmolLM2-135M-Instruct
export MODEL

.PHONY: help
help: ## Show this
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-19s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo demo-stop
demo: ## A cluster, the chart, a model and a true answer: then yours (MODEL=Qwen/Qwen3-0.6B for another)
	@$(SETUP) demo && $(PY) -m tests.demo start

demo-stop: ## End the demo and its cluster
	@$(SETUP) demo && $(PY) -m tests.demo stop

.PHONY: install fmt lint
install: ## Get everything: Debian packages (as root), .venv, the cluster's programs
	@$(SETUP) all

fmt: ## Format the Python and fix what ruff can fix
	@$(SETUP) lint && $(PY) -m ruff check --fix . && $(PY) -m ruff format .

lint: ## ruff, mypy --strict, and the direction of imports
	@$(SETUP) lint && $(PY) -m ruff check . && $(PY) -m ruff format --check . && $(PY) -m mypy && .venv/bin/lint-imports

.PHONY: test test-gpu test-engine-image $(LAYERS:%=test-%)
test: ## Everything that needs no GPU (as root also on a real node)
	@$(SETUP) test && $(PYTEST) -m "not gpu and not engine_image" $(foreach l,$(LAYERS),tests/$(subst -,_,$(l)))

$(LAYERS:%=test-%):
	@$(SETUP) test && $(PYTEST) -m "not gpu and not engine_image" tests/$(subst -,_,$(@:test-%=%))

test-unit: ## No process, no network: seconds
test-contract: ## The HTTP API, and what the operator tells the engine
test-parity: ## The engine's tokens against transformers'
test-control-plane: ## The operator on a real API server
test-chart: ## helm lint, template and the schema
test-images: ## The operator's image: built by podman, what is in it, run on a node (as root)
test-cluster: ## The local cluster itself
test-e2e: ## Real pods: install, answer, kill, delete (as root)
test-ecosystem: ## Beside what others make: KEDA, and the Gateway API's endpoint picker (as root)

test-engine-image: ## The engine's image: built (5 GB, minutes), started, asked (as root)
	@$(SETUP) test && $(PYTEST) -m engine_image tests/images

test-gpu: ## What needs a CUDA device
	@$(SETUP) lint && $(PYTEST) -m gpu tests

.PHONY: ci bench fuzz sim crds chart images constraints clean
ci: lint test ## lint and test: exactly what .ci/run runs

bench: ## Speed of Qwen3-0.6B's shape against this machine's ceilings (PEERS=transformers,vllm,openvino)
	@$(SETUP) lint && $(PY) -m tests.bench --peers "$(PEERS)"

fuzz: ## 20,000 random requests against tiny models (minutes): no 5xx, no block lost
	@$(SETUP) lint && $(PY) -m tests.bench.fuzz

sim: ## The scaling signal against its rivals, simulated (minutes, one core)
	@$(SETUP) lint && $(PY) -m tests.sim

crds: ## Copy the CRD into the chart
	@cp crds/*.yaml charts/qwen-operator/crds/

chart: ## Lint the chart and pack it into dist/
	@$(SETUP) demo && tests/setup/chart.sh

images: ## Build both images with docker or podman
	@tests/setup/images.sh

constraints: ## Pin the newest versions that fit into constraints.txt
	@tests/setup/constraints.sh

clean: ## Remove what is built inside the clone (the cache outside stays)
	@rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache engine/*.egg-info operator/*.egg-info
