#!/usr/bin/env bash
# Builds the benchmark and the Switchyard of this tree into bin/.
set -euo pipefail
cd "$(dirname "$0")"
mkdir -p bin
go build -o bin/bench .
(cd .. && go build -o bench/bin/switchyard ./cmd/switchyard)
