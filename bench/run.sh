#!/usr/bin/env bash
# Runs the scenarios on one system and prints JSON and tables:
#   ./run.sh SYSTEM [--sync fsync|relaxed] [--slow-sync 1ms] [MORE FLAGS]
# ./run.sh -h lists the flags.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
"$here/build.sh"
export PATH=$here/bin:$PATH
exec "$here/bin/bench" run "$@"
