#!/bin/sh
# A first look at Switchyard: builds it, starts a server in a temporary folder,
# adds a task for every Go file of this repository, counts the words of each
# with one `wc` per task, tells how fast that went and leaves nothing behind.
# Needs Go, a shell and coreutils.
set -eu
cd "$(dirname "$0")/.."

tmp=$(mktemp -d)
server=
cleanup() {
	trap '' INT TERM
	if [ -n "$server" ]; then
		kill "$server" 2>/dev/null || true
		wait "$server" 2>/dev/null || true
	fi
	rm -rf "$tmp"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

say() { printf '\n== %s\n' "$*"; }

say 'Build'
go build -o "$tmp/switchyard" ./cmd/switchyard
echo 'go build -o switchyard ./cmd/switchyard'

say 'Start a server: switchyard dev'
"$tmp/switchyard" dev --data "$tmp/data" --listen 127.0.0.1:0 --address-file "$tmp/address" >"$tmp/server.log" 2>&1 &
server=$!
tries=0
while [ ! -s "$tmp/address" ]; do
	tries=$((tries + 1))
	if [ "$tries" -gt 300 ] || ! kill -0 "$server" 2>/dev/null; then
		echo 'The server did not start:' >&2
		cat "$tmp/server.log" >&2
		exit 1
	fi
	sleep 0.1
done
SWITCHYARD_ADDRESS=$(cat "$tmp/address")
export SWITCHYARD_ADDRESS
echo "It listens on $SWITCHYARD_ADDRESS and syncs every write to the disk before it answers."

# The names of all Go files below a folder, hidden folders left out.
go_files() {
	for entry in "$1"/*; do
		if [ -d "$entry" ]; then
			go_files "$entry"
		else
			case $entry in
			*.go) echo "${entry#./}" ;;
			esac
		fi
	done
}

say 'A task for every Go file: switchyard add words --files -'
go_files . >"$tmp/files"
"$tmp/switchyard" add words --files - --progress <"$tmp/files"
"$tmp/switchyard" queue list

say 'Work them off: switchyard work words --exit-when-empty -- sh -c '"'"'wc -w "$(cat)"'"'"
"$tmp/switchyard" work words --exit-when-empty --progress -- sh -c 'wc -w "$(cat)"' >"$tmp/counts"
"$tmp/switchyard" queue list

say 'What was done'
tasks=0
words=0
while read -r n _; do
	tasks=$((tasks + 1))
	words=$((words + n))
done <"$tmp/counts"
files=$(wc -l <"$tmp/files")
if [ "$tasks" -ne "$files" ]; then
	echo "$files tasks were added, but $tasks were worked off." >&2
	exit 1
fi
echo "$tasks files, $words words. The longest:"
sort -rn "$tmp/counts" | head -n 3

say 'Stop the server and remove its data'
