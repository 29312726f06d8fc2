#!/bin/sh
# Keeps the client of a released version for the upgrade tests: tests/upgrade/keep_version.sh COMMIT VERSION
set -eu
cd "$(dirname "$0")/../.."
git archive --format=zip --prefix= -o "tests/upgrade/client_$2.zip" "$1:include" \
    backstop/__init__.py backstop/model backstop/sql \
    backstop/client backstop/leases backstop/brokers/__init__.py backstop/brokers/protocol.py backstop/brokers/redis_streams
