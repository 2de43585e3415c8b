#!/usr/bin/env bash
# Start a coordinator and three sites on this machine, with TLS and keys: start.sh [FOLDER] [PORT]
# On real machines each part of this script runs where its data are; see docs/sites.md.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:-hospitals}
port=${2:-9092}
mkdir -p "$folder"
cd "$folder"
if [ -f pids ] && xargs -r ps -o pid= -p < <(paste -sd, pids) > /dev/null 2>&1; then
    echo "start.sh: $folder has been started already; $here/stop.sh $folder ends it" >&2
    exit 1
fi
: > pids

# The coordinator makes an authority and a certificate for its own address.
[ -d keys ] || tacit keys init keys localhost

part=0
for name in hospital-a hospital-b hospital-c; do
    # A site makes its key and sends the public half, which the coordinator registers under a name.
    if [ ! -d "$name" ]; then
        tacit keys new "$name" "$name"
        tacit keys add keys "$name" "$name/$name.pub"
    fi
    # A site has its data, its private key, the coordinator's ca.crt, a policy that says what it may
    # be asked for, and a folder for its memory and ledger. Here a part of the embedded digits stands
    # for a hospital's own data: two classes each. A hospital says instead, for example,
    # --data scans/ --classes benign,malignant: all classes there can be.
    tacit join --server "localhost:$port" --name "$name" --key "$name/$name.key" --ca keys/ca.crt \
        --policy "$here/policy.toml" --store "$name/store" --data digits --split label:2 --part "$part/3" > "$name/join.log" 2>&1 &
    echo $! >> pids
    part=$((part + 1))
done

# A run that is there goes on; a new one begins with the experiment.
what=$here/experiment.toml
[ ! -f run/config.toml ] || what=run
set -- --keys keys --host localhost --port "$port"
[ "$what" = run ] || set -- "$@" --out run
tacit serve "$what" "$@" > serve.log 2>&1 &
echo $! >> pids
echo "started; $folder/serve.log tells how it goes, $here/stop.sh $folder ends it all"
