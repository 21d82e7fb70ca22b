#!/bin/bash
# An array of simulations. Each task of the array is a job of mcr, with its own name and directory. To continue all
# simulations, submit the same array again.
#
#     MCR_STORE=/lustre/mcr SIMULATION=./simulation sbatch --job-name=wave --array=0-9 --ntasks=64 array.sh
#
#SBATCH --requeue --open-mode=append
# shellcheck disable=SC2086 # SIMULATION and args may be several words
export MCR_STORE=${MCR_STORE:-/lustre/mcr} MCR_JOB=${MCR_JOB:-$SLURM_JOB_NAME}-$SLURM_ARRAY_TASK_ID
SIMULATION=${SIMULATION:-$PWD/simulation} DIR=${DIR:-$PWD/run}-$SLURM_ARRAY_TASK_ID

mkdir -p "$DIR" && cd "$DIR" || exit 1
mcr restart --to "$DIR"
case $? in
    0 | 2) args=--restart ;;    # the newest checkpoint is in DIR (2: an older or doubtful checkpoint)
    3) args= ;;                 # no checkpoint was ever completed: a new run
    *) exit 1 ;;                # nothing was restored, see the output of mcr
esac
exec mcr run --watch "$DIR" --ranks "$SLURM_NTASKS" -- srun $SIMULATION $args
