#!/bin/sh
# Train one model on several machines. Start this script on each of them, with the number of the
# machine: 0 on the first, 1 on the second, and so on.
#
#   FIRST=10.0.0.1 MACHINES=2 PER_MACHINE=4 sh torchrun.sh 0 recipe.toml --out /shared/run
#
# The processes trust everyone who can reach PORT: torch has no passwords for it. Use a private
# network. On machines with several networks, set GLOO_SOCKET_IFNAME (and NCCL_SOCKET_IFNAME on
# GPUs) to the private one.
set -eu
machine=$1
shift
exec torchrun \
    --nnodes "${MACHINES:-1}" \
    --nproc-per-node "${PER_MACHINE:-1}" \
    --node-rank "$machine" \
    --master-addr "${FIRST:-127.0.0.1}" \
    --master-port "${PORT:-29500}" \
    --max-restarts 3 \
    -m unimp train "$@"
