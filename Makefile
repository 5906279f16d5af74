# Everything here needs Go, gcc and make; nothing else is installed by hand.
# The tools (buf and its plugins, staticcheck) are pinned in tools/go.mod and
# built by `go tool`.

GO     ?= go
TOOL   := $(GO) tool -modfile=tools/go.mod
BIN    := bin
SHELL  := /bin/bash
.SHELLFLAGS := -euo pipefail -c

# Packages whose tests run after the unit tests and without the race detector:
# those that start real processes, where the shipped binary is under test, and the
# simulator, which is one goroutine and has much to compute.
PROCESS_TESTS := ./internal/crashtest/... ./internal/simulate/...

# Longer fuzzing: make fuzz FUZZTIME=1m
FUZZTIME ?= 10s

.DEFAULT_GOAL := help

.PHONY: help
help: ## Show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## Build, start a server, feed it every Go file here, work it off, clean up
	@scripts/demo.sh

.PHONY: cluster
cluster: ## A cluster on this machine until Ctrl-C: make cluster SETS=1 MEMBERS=3
	@SETS=$(or $(SETS),1) MEMBERS=$(or $(MEMBERS),3) scripts/cluster.sh

.PHONY: build
build: ## Build bin/switchyard
	$(GO) build -o $(BIN)/switchyard ./cmd/switchyard

.PHONY: install
install: ## Install switchyard into GOBIN
	$(GO) install ./cmd/switchyard

# ---- tests -----------------------------------------------------------------

.PHONY: test
test: check unit process ## Everything: checks, unit tests with -race, process tests

.PHONY: check
check: check-format check-proto check-modules check-build lint ## All checks that run no test

.PHONY: check-format
check-format:
	@echo "== gofmt"
	@scripts/check-format.sh

.PHONY: check-proto
check-proto:
	@echo "== proto: lint, breaking changes, generated code"
	@scripts/check-proto.sh

.PHONY: check-modules
check-modules:
	@echo "== modules: verify, tidy"
	@$(GO) mod verify
	@$(GO) mod tidy -diff

.PHONY: check-build
check-build:
	@echo "== build, vet"
	@$(GO) build ./...
	@$(GO) vet ./...

.PHONY: lint
lint: ## staticcheck with the settings of staticcheck.conf
	@echo "== staticcheck"
	@$(TOOL) staticcheck ./...

.PHONY: unit
unit: ## Unit tests with the race detector, fuzz seeds included
	@echo "== unit tests (-race)"
	@$(GO) test -race -timeout 8m $$($(GO) list ./... | grep -v -F -x -f <($(GO) list $(PROCESS_TESTS)))

.PHONY: process
process: ## Process tests (kill -9, torn log, full disk, vanished workers) and the simulator's
	@echo "== process tests"
	@$(GO) test -count=1 -timeout 8m $(PROCESS_TESTS)

# The long form of the chaos tests: make chaos SEED=7 DURATION=5m
SEED     ?= $(shell date +%s)
DURATION ?= 2m

.PHONY: chaos
chaos: ## The store under kills, network and disk faults and moves for DURATION, checked for linearizability
	$(GO) test -count=1 -timeout 0 -v -run '_long$$' ./internal/chaos -seed $(SEED) -duration $(DURATION)

.PHONY: chaos-cluster
chaos-cluster: ## A cluster of real processes under kill -9 and network cuts for DURATION; the history of its queues is checked
	$(GO) test -count=1 -timeout 0 -v -run '^TestCluster_long$$' ./internal/crashtest -cluster $(DURATION) -cluster-seed $(SEED)

.PHONY: fuzz
fuzz: ## Run every fuzz test for FUZZTIME
	@scripts/fuzz.sh $(FUZZTIME)

.PHONY: bench
bench: ## Go benchmarks of the packages (the comparison with others: bench/README.md)
	$(GO) test -run '^$$' -bench . -benchmem ./...

.PHONY: bench-moves
bench-moves: ## What moves cost those who use the bucket, and what happens when members die meanwhile
	$(GO) run ./internal/movebench
	$(GO) run ./internal/movebench -beside -mib 1024
	$(GO) run ./internal/movebench -trouble -mib 100 -runs 1

.PHONY: bench-store
bench-store: ## What replica sets of one and of three do, and how long a failover takes
	$(GO) run ./internal/storebench

.PHONY: bench-rebalance
bench-rebalance: ## How long an added replica set takes to fill, and what traffic notices of it
	$(GO) run ./internal/rebalbench
	$(GO) run ./internal/rebalbench -members 3
	$(GO) run ./internal/rebalbench -rows 10 -load

.PHONY: check-bench
check-bench: ## Build and vet the comparison with others (a module of its own, many dependencies)
	cd bench && $(GO) build ./... && $(GO) vet ./...

# ---- generated code --------------------------------------------------------

.PHONY: proto
proto: ## Generate api/ from proto/
	$(TOOL) buf generate

.PHONY: proto-baseline
proto-baseline: ## Take proto/ as the new baseline for breaking changes
	$(TOOL) buf build --exclude-source-info -o proto/baseline.txtpb

.PHONY: format
format: ## gofmt all Go files, buf format all proto files
	gofmt -w $$(git ls-files -co --exclude-standard '*.go' | grep -v -E '\.pb(\.gw)?\.go$$')
	$(TOOL) buf format -w

.PHONY: tidy
tidy: ## Tidy go.mod
	$(GO) mod tidy

.PHONY: clean
clean: ## Remove what was built
	rm -rf $(BIN)
