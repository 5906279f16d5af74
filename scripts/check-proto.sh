#!/usr/bin/env bash
# Checks the wire: style, breaking changes against proto/baseline.txtpb, and that
# the generated code under api/ is what proto/ generates now.
set -euo pipefail
cd "$(dirname "$0")/.."

buf() { go tool -modfile=tools/go.mod buf "$@"; }

buf lint
buf format --exit-code --diff >&2 || {
	echo "proto files are not formatted (run: make format)" >&2
	exit 1
}
buf breaking --against proto/baseline.txtpb || {
	echo "a change above breaks clients; if that is meant, run: make proto-baseline" >&2
	exit 1
}

fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
buf generate -o "$fresh"

# Only generated files are compared: api/ also holds code written by hand.
generated() { (cd "$1" && find api -type f \( -name '*.pb.go' -o -name '*.pb.gw.go' -o -name '*.swagger.json' \) | sort); }

stale=0
if ! diff <(generated "$fresh") <(generated .) >&2; then stale=1; fi
while read -r file; do
	cmp -s "$fresh/$file" "$file" || {
		echo "out of date: $file" >&2
		stale=1
	}
done < <(generated "$fresh")
if [ "$stale" = 1 ]; then
	echo "generated code does not match proto/ (run: make proto)" >&2
	exit 1
fi
