#!/usr/bin/env bash
# End everything that start.sh started: stop.sh [FOLDER]
cd "${1:-hospitals}" || exit 1
while read -r pid; do
    kill "$pid" 2> /dev/null || true
done < pids
while read -r pid; do
    for _ in $(seq 100); do
        kill -0 "$pid" 2> /dev/null || break
        sleep 0.1
    done
done < pids
rm -f pids
