# Blockyard. "make" or "make help" lists the targets.

SHELL       := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)

export CGO_ENABLED := 1
# git describe gives the version. With -buildvcs, go build would ask git again, and
# fail in a checkout of another user.
export GOFLAGS := $(shell go env GOFLAGS 2>/dev/null) -trimpath -buildvcs=false

GO_BUILD := go build -ldflags "-X main.version=$(VERSION)"

.PHONY: help deps build test check race demo demo-trace selftest bench bench-compare bench-disk stress kill-loop bench-events soak-events soak-fleet bench-front bench-serve bench-index soak-index test-connector test-native mutate-native test-gpu test-vllm test-python test-dynamo test-front test-envoy test-ops deploy-check docs bench-connector wheels release fmt vet lint lint-full fuzz-short generate docker clean simulate

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

deps: ## Check Go and the C compiler; install libzmq's headers where allowed
	@scripts/deps.sh

build: deps ## Build bin/blockyard and bin/blockyard-lab
	@$(GO_BUILD) -o bin/ ./cmd/blockyard ./cmd/blockyard-lab

test: build ## Every check: format, vet, tests, race detector, short demo, self-test
	@scripts/test.sh

check: lint ## Fast checks: format, vet, lint, tests of the packages changed since main: make check REF=main
	@scripts/test-changed.sh $(REF)

race: deps ## Every test under the race detector
	@go test -race ./...

demo: build ## Two agents, four simulated engines and a router; compare three ways to route
	@bin/blockyard demo

demo-trace: build ## The demo on a Mooncake trace: make demo-trace TRACE=file.jsonl
	@[ -n "$(TRACE)" ] || { echo 'blockyard: TRACE is empty: make demo-trace TRACE=file.jsonl' >&2; exit 2; }
	@bin/blockyard demo --trace "$(TRACE)"

selftest: build ## Flip stored bytes, and check that the demo detects them
	@bin/blockyard demo --selftest

bench: deps ## Every benchmark, with allocations
	@go test -run '^$$' -bench . -benchmem ./...

bench-compare: deps ## Compare benchmarks of the tree with a commit: make bench-compare REF=main PKG=./router/index BENCH=. COUNT=6
	@BENCH='$(BENCH)' COUNT='$(COUNT)' BENCHTIME='$(BENCHTIME)' scripts/bench-compare.sh '$(REF)' $(PKG)

bench-disk: build ## Compare the disk tier with fio, and copies with memcpy: make bench-disk ARGS="--dir /mnt"
	@bin/blockyard bench disk $(ARGS)

stress: SECONDS ?= 30
stress: build ## Random operations with faults, restarts and power losses: make stress SECONDS=30
	@bin/blockyard bench stress --seconds $(SECONDS) $(ARGS)

kill-loop: N ?= 50
kill-loop: build ## Kill -9 agents and engines during copies, and check the recovered blocks: make kill-loop N=50
	@bin/blockyard bench kill-loop --kills $(N) $(ARGS)

simulate: SEEDS ?= 10
simulate: build ## Ways to choose a worker in virtual time: make simulate SEEDS=3 ARGS="--trace FILE --page result.html"; ARGS=--calibrate compares the simulator with a real vLLM
	@scripts/simulate.sh --seeds $(SEEDS) $(ARGS)

bench-events: build ## The event path: throughput, memory, age of events at the router
	@scripts/bench-events.sh $(ARGS)

soak-events: SECONDS ?= 60
soak-events: build ## Inject faults into the event path, and compare the router's index: make soak-events SECONDS=60
	@scripts/soak-events.sh --seconds $(SECONDS) $(ARGS)

soak-fleet: SECONDS ?= 60
soak-fleet: build ## Kill routers, agents and NATS under load, and compare the routers' bookings: make soak-fleet SECONDS=60
	@go build -o bin/nats-server github.com/nats-io/nats-server/v2
	@bin/blockyard-lab soak fleet --seconds $(SECONDS) $(ARGS)

bench-front: build ## What the front door adds to requests, beside other routers, installed on first use
	@scripts/bench-front.sh $(ARGS)

bench-serve: build ## Real vLLM servers on CPU: every router with every cache tier, installed on first use
	@scripts/bench-serve.sh $(ARGS)

bench-index: build ## The router's index on operation logs: make bench-index OPLOG=file (default: four generated logs)
	@OPLOG="$(OPLOG)" scripts/bench-index.sh $(ARGS)

soak-index: SECONDS ?= 600
soak-index: build ## Index and scheduler at 100,000 blocks a second; growth of heap and memory: make soak-index SECONDS=600
	@scripts/soak-index.sh --seconds $(SECONDS) $(ARGS)

test-connector: build ## The connector's own tests, with a real agent; need only Python's standard library
	@python3 connector/tests $(ARGS)

test-native: ## Test the connector's data plane in C with sanitizers, and fuzz its frames
	@scripts/test-native.sh

test-gpu: ## Test and measure the connector's copies on a GPU; says so where there is none
	@scripts/test-gpu.sh $(ARGS)

mutate-native: ## Put each known CUDA hazard back into the library, and check that a test finds the hazard
	@python3 connector/native/tests/mutants.py

test-vllm: build ## Test the connector in a real vLLM on CPU, installed on first use: make test-vllm ARGS="--only reset-reload"
	@scripts/test-vllm.sh $(ARGS)

test-python: build ## Test the wire formats with Python programs; installs pyzmq, msgspec and nats-py on first use
	@python=$$(scripts/events-env.sh); BLOCKYARD_EVENTS_ENV=$${python%/bin/python} go test -count=1 -v -run Python ./publisher/zmqsink ./lab/cli

test-dynamo: build ## Test with a real NVIDIA Dynamo, installed on first use: make test-dynamo ARGS="--only we-read-its-worker"
	@scripts/test-dynamo.sh $(ARGS)

test-front: build ## Test the front door with real vLLM servers on CPU, the OpenAI client, AIPerf and Envoy, installed on first use: make test-front ARGS="--only second-turn"
	@scripts/test-front.sh $(ARGS)

test-envoy: build ## Test the endpoint picker behind a real Envoy, installed on first use
	@envoy=$$(scripts/envoy-env.sh); BLOCKYARD_ENVOY=$$envoy go test -count=1 -v ./interop/envoy

test-ops: build ## Test what operators use: reload, doctor, upgrades, deploy/, the web console in Chromium: make test-ops REF=v0.1.0
	@REF="$(REF)" scripts/test-ops.sh $(ARGS)

deploy-check: build ## Check deploy/: chart, manifests, dashboards, alerts, Compose file, units, image; downloads Go modules on first use
	@scripts/deploy-check.sh $(ARGS)

docs: ## Build the documentation site in site/ with Sphinx, installed on first use; broken links fail
	@scripts/docs.sh

bench-connector: build ## The connector in a real vLLM: cost of hooks, start of a load, time to first token
	@scripts/bench-connector.sh $(ARGS)

wheels: ## Build dist/*.whl: the connector for each machine with a C compiler, and the drop-in names of KVBM
	@scripts/wheels.sh

release: deps ## Binaries, wheels, SBOM, provenance and SHA256SUMS of VERSION in dist/VERSION: make release BUILDER_ID=URI
	@BUILDER_ID='$(BUILDER_ID)' scripts/release.sh $(ARGS) '$(VERSION)'

fmt: ## Format all Go files
	@gofmt -w .

vet: deps ## go vet
	@go vet ./...

lint: vet ## go vet, format, and the rules of internal/lint
	@files=$$(gofmt -l .); [ -z "$$files" ] || { echo "not formatted: $$files" >&2; exit 1; }
	@if command -v shellcheck >/dev/null; then shellcheck scripts/*.sh .ci/run; fi
	@go test -count=1 ./internal/lint

# The version that .golangci.yml is written for.
GOLANGCI_LINT := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

lint-full: lint ## lint, and the linters of .golangci.yml; compiles golangci-lint where it is not installed
	@if command -v golangci-lint >/dev/null; then golangci-lint run; else go run $(GOLANGCI_LINT) run; fi

fuzz-short: deps ## Every fuzz target for 10 seconds (FUZZTIME=30s for longer)
	@scripts/fuzz.sh $(FUZZTIME)

generate: ## Regenerate the message codecs
	@go generate ./...

docker: ## Build the container image blockyard:VERSION
	@docker build --build-arg VERSION=$(VERSION) -t blockyard:$(VERSION) .

clean: ## Remove bin, dist and site
	@rm -rf bin dist site
