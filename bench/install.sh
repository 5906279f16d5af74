#!/usr/bin/env bash
# Installs the servers that Switchyard is compared with: Debian packages, and the
# NATS server from the Go module that go.mod names, into bin/.
set -euo pipefail
cd "$(dirname "$0")"

missing=()
need() { # need PROGRAM PACKAGE
	command -v "$1" >/dev/null || missing+=("$2")
}
need redis-server redis-server
need beanstalkd beanstalkd
compgen -G '/usr/lib/rabbitmq/lib/rabbitmq_server-*' >/dev/null || missing+=(rabbitmq-server)
compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null || command -v postgres >/dev/null || missing+=(postgresql)

if ((${#missing[@]})); then
	command -v apt-get >/dev/null || { echo "install these by hand: ${missing[*]}" >&2; exit 1; }
	((EUID == 0)) || { echo "run as root, or install these by hand: ${missing[*]}" >&2; exit 1; }
	apt-get update -q
	DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}"
fi
mkdir -p bin
go build -o bin/ github.com/nats-io/nats-server/v2
echo "installed: redis-server, beanstalkd, rabbitmq-server, postgres, bin/nats-server"
