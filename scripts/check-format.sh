#!/usr/bin/env bash
# Fails when a Go file is not formatted. Generated files are left out: their
# generators decide.
set -euo pipefail
cd "$(dirname "$0")/.."

list() { find . -name '*.go' -not -path './.git/*' | grep -v -E '\.pb(\.gw)?\.go$'; }

bad=$(list | xargs -r gofmt -l)
if [ -n "$bad" ]; then
	echo "not formatted (run: make format):"
	echo "$bad"
	exit 1
fi
