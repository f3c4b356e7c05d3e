#!/bin/sh
# Train on several nodes with torchrun. Run the same command on each node, with the name of one of them in HEAD:
#
#     HEAD=node0 NODES=2 sh examples/engines/torchrun.sh --steps 300 --save-every 20 --folder /shared/run      # on node0
#     HEAD=node0 NODES=2 sh examples/engines/torchrun.sh --steps 300 --save-every 20 --folder /shared/run      # on node1
#
# WORKERS is their number on each node (one a GPU), PORT one that is free on HEAD, JOB a name that no other job there has.
# If a worker dies, torchrun starts the workers of all nodes again, and they go on from the newest checkpoint: its
# folder must be one that all nodes see.
set -eu

# Each start gets a store of its own. In a store that is kept, workers would look for each other under the number of the
# restart, and a node counts its own workers' failures alone: after one failure the nodes differ, and wait for ever.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1

exec torchrun --nnodes "${NODES:-2}" --nproc-per-node "${WORKERS:-1}" --max-restarts 3 \
    --rdzv-backend c10d --rdzv-endpoint "$HEAD:${PORT:-29500}" --rdzv-id "${JOB:-gradwire}" \
    examples/train_ddp.py "$@"
