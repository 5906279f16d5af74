#!/usr/bin/env bash
# Runs all scenarios on all systems in turns, in all three modes, writes
# results/NAME.json and prints the tables:
#   ./run-all.sh [NAME] [--rounds N] [MORE FLAGS]
# NAME is the date when it is left out. To put the tables into the documentation:
#   bin/bench table --into ../docs/benchmarks.md results/NAME.json
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
name=$(date -u +%Y-%m-%d)
if (($#)) && [[ $1 != -* ]]; then
	name=$1
	shift
fi
"$here/build.sh"
mkdir -p "$here/results"
export PATH=$here/bin:$PATH
exec "$here/bin/bench" all --out "$here/results/$name.json" "$@"
