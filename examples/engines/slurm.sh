#!/bin/bash
# Train on the nodes of a Slurm job. Submit it from the folder of the repository:
#
#     sbatch --nodes 2 examples/engines/slurm.sh --steps 300 --save-every 20 --folder /shared/run
#
# If a worker dies, torchrun starts the workers again. If a node or its torchrun dies, Slurm starts the whole job again,
# three times at most. Either way training goes on from the newest checkpoint, in a folder that all nodes see.
#SBATCH --job-name=gradwire
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --requeue
#SBATCH --open-mode=append
set -u

# This script runs on the first node of the job.
HEAD=$(hostname) NODES=$SLURM_JOB_NUM_NODES WORKERS=${SLURM_GPUS_ON_NODE:-1} JOB=$SLURM_JOB_ID
PORT=$((20000 + SLURM_JOB_ID % 10000))
export HEAD NODES WORKERS JOB PORT

srun --kill-on-bad-exit=1 sh examples/engines/torchrun.sh "$@" && exit
code=$?
[ "${SLURM_RESTART_COUNT:-0}" -lt 3 ] && scontrol requeue "$SLURM_JOB_ID"
exit "$code"
