#!/usr/bin/env bash
# Runs every fuzz test of the module, one after the other, for the time given.
# usage: fuzz.sh [TIME]
set -euo pipefail
cd "$(dirname "$0")/.."
time=${1:-10s}

grep -rl --include='*_test.go' '^func Fuzz' . --exclude-dir=.git --exclude-dir=bench | xargs -r -n1 dirname | sort -u |
	while read -r dir; do
		grep -h -o '^func Fuzz[A-Za-z0-9_]*' "$dir"/*_test.go | awk '{print $2}' |
			while read -r name; do
				echo "== $dir $name"
				go test -run '^$' -fuzz "^$name\$" -fuzztime "$time" "$dir" </dev/null
			done
	done
