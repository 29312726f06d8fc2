#!/bin/sh
# Starts the broker's server. The password goes by a file in memory that only the server's user can read: as an argument
# every process list would show it. Nothing is evicted (a full broker must refuse a message, not forget one): it refuses at three
# quarters of its container's memory, so that a rewrite of its file finds some, too. A reply means that the entry is on disk. The data lies in the
# working folder, which is /data in the image.
set -eu
umask 077
printf 'requirepass %s\n' "${REDIS_PASSWORD:?}" > "${REDIS_PRIVATE:?}/redis.conf"
exec redis-server "$REDIS_PRIVATE/redis.conf" --port "${REDIS_PORT:-6379}" --dir . --appendonly yes --appendfsync always --save "" \
    --maxmemory 768mb --maxmemory-policy noeviction
