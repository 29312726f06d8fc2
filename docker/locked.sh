#!/bin/sh
# Prints the entries of requirements.lock for the named packages, with their hashes, as a file of requirements for pip.
set -eu
for name; do
    grep -q "^$name==" requirements.lock || { echo "requirements.lock has no $name" >&2; exit 1; }
    sed -n -e "/^$name==/,/[^\\\\]\$/p" requirements.lock
done
