#!/bin/bash
# One node, with Open MPI's mpirun in place of srun. Each start of this script continues from the newest checkpoint.
#
#     MCR_STORE=/lustre/mcr SIMULATION=./simulation sbatch --job-name=wave --ntasks=64 --time=12:00:00 mpirun.sh
#
#SBATCH --requeue --open-mode=append
# shellcheck disable=SC2086 # SIMULATION and args may be several words
export MCR_STORE=${MCR_STORE:-/lustre/mcr} MCR_JOB=${MCR_JOB:-$SLURM_JOB_NAME}
SIMULATION=${SIMULATION:-$PWD/simulation} DIR=${DIR:-$PWD/run}    # the simulation writes its checkpoints into DIR

mkdir -p "$DIR" && cd "$DIR" || exit 1
mcr restart --to "$DIR"
case $? in
    0 | 2) args=--restart ;;    # the newest checkpoint is in DIR (2: an older or doubtful checkpoint)
    3) args= ;;                 # no checkpoint was ever completed: a new run
    *) exit 1 ;;                # nothing was restored, see the output of mcr
esac

# `exec`: SLURM waits for mcr after scancel or at the time limit. Otherwise SLURM kills mcr as soon as this shell
# ends.
exec mcr run --watch "$DIR" --ranks "$SLURM_NTASKS" -- mpirun -n "$SLURM_NTASKS" $SIMULATION $args
