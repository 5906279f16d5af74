#!/bin/sh
# A cluster on this machine: SETS replica sets of MEMBERS nodes each (1 of 3 when not
# said), every node with all roles, in the folder CLUSTER (./switchyard-cluster). The first
# start makes the store, a later one finds it. Ctrl-C stops the nodes one after the other.
# Node i listens for clients on PORT+10(i-1) (7480), and on the two ports after it for other
# nodes. Needs Go and a shell.
set -eu
cd "$(dirname "$0")/.."

sets=${SETS:-1}
members=${MEMBERS:-3}
port=${PORT:-7480}
dir=${CLUSTER:-./switchyard-cluster}
nodes=$((sets * members))

mkdir -p "$dir"
go build -o "$dir/switchyard" ./cmd/switchyard

pids=
cleanup() {
	trap '' INT TERM
	for pid in $pids; do
		kill "$pid" 2>/dev/null || true
		wait "$pid" 2>/dev/null || true
	done
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

i=0
while [ "$i" -lt "$nodes" ]; do
	i=$((i + 1))
	at=$((port + 10 * (i - 1)))
	cat >"$dir/n$i.yaml" <<EOF
listen: 127.0.0.1:$at
data_dir: $dir/n$i
node:
  name: n$i
cluster:
  id: local
  listen: 127.0.0.1:$((at + 1))
  gossip: 127.0.0.1:$((at + 2))
  seeds: [127.0.0.1:$((port + 2)), 127.0.0.1:$((port + 10 * (nodes - 1) + 2))]
  replica_set: s$(((i - 1) / members + 1))
EOF
	# In a group of its own, so that Ctrl-C reaches this script alone, which stops one
	# node after the other.
	setsid "$dir/switchyard" server --config "$dir/n$i.yaml" >>"$dir/n$i.log" 2>&1 &
	pids="$pids $!"
done

SWITCHYARD_ADDRESS=127.0.0.1:$port
export SWITCHYARD_ADDRESS
tries=0
until "$dir/switchyard" cluster bootstrap --replica-sets "$sets" --members "$members" >"$dir/bootstrap.log" 2>&1 ||
	grep -q NON_EMPTY "$dir/bootstrap.log"; do
	tries=$((tries + 1))
	if [ "$tries" -gt 100 ]; then
		echo 'The store could not be made:' >&2
		cat "$dir/bootstrap.log" >&2
		exit 1
	fi
	for pid in $pids; do
		if ! kill -0 "$pid" 2>/dev/null; then
			echo "A node has stopped; see the end of $dir/n*.log" >&2
			exit 1
		fi
	done
	sleep 0.2
done

tries=0
until "$dir/switchyard" shard info >"$dir/info.log" 2>&1 && ! grep -q red "$dir/info.log"; do
	tries=$((tries + 1))
	if [ "$tries" -gt 150 ]; then
		echo 'The store does not get ready:' >&2
		cat "$dir/info.log" >&2
		exit 1
	fi
	sleep 0.2
done
"$dir/switchyard" cluster members
cat <<EOF

The cluster runs. Logs and data are in $dir. In another terminal:

  export SWITCHYARD_ADDRESS=127.0.0.1:$port
  $dir/switchyard shard info
  $dir/switchyard add hello world
  $dir/switchyard work hello -- cat

Ctrl-C stops it.
EOF
for pid in $pids; do
	wait "$pid" || true
done
