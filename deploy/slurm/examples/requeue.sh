#!/bin/bash
# A simulation that needs more time than the time limit of a job. Two minutes before the time limit, SLURM sends
# SIGUSR1 to this script. The script then ends the simulation, waits until the last checkpoint is committed, and
# requeues the job. The next start continues from the newest checkpoint. When the simulation ends by itself, the job
# ends.
#
#     MCR_STORE=/lustre/mcr SIMULATION=./simulation sbatch --job-name=wave --ntasks=64 --time=12:00:00 requeue.sh
#
#SBATCH --requeue --open-mode=append --signal=B:USR1@120
# shellcheck disable=SC2086 # SIMULATION and args may be several words
export MCR_STORE=${MCR_STORE:-/lustre/mcr} MCR_JOB=${MCR_JOB:-$SLURM_JOB_NAME}
SIMULATION=${SIMULATION:-$PWD/simulation} DIR=${DIR:-$PWD/run}

mkdir -p "$DIR" && cd "$DIR" || exit 1
mcr restart --to "$DIR"
case $? in
    0 | 2) args=--restart ;;    # the newest checkpoint is in DIR (2: an older or doubtful checkpoint)
    3) args= ;;                 # no checkpoint was ever completed: a new run
    *) exit 1 ;;                # nothing was restored, see the output of mcr
esac

again=no
# Sends SIGTERM to the steps of the job. If `srun` got SIGTERM, it would kill the simulation and not pass SIGTERM on.
trap 'again=yes; scancel --signal=TERM "$SLURM_JOB_ID"' USR1
trap : TERM    # After scancel, SLURM kills mcr as soon as this shell ends. With this trap, the shell waits for mcr.
mcr run --watch "$DIR" --ranks "$SLURM_NTASKS" -- srun $SIMULATION $args & mcr=$!
wait $mcr; status=$?
while kill -0 $mcr 2>/dev/null; do wait $mcr; status=$?; done    # a signal interrupts `wait`
[ $again = no ] || scontrol requeue "$SLURM_JOB_ID"
exit $status
