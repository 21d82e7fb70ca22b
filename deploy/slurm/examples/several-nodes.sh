#!/bin/bash
# Several nodes with local disks: an agent on each node, and an aggregator on the first node. Each start of this
# script continues from the newest checkpoint, also on other nodes. Run `mcr cert init` once before the first job:
# this command makes a key in your home directory, by which agents and aggregators recognize each other.
#
#     MCR_STORE=/lustre/mcr SIMULATION=./simulation sbatch --job-name=wave --nodes=4 --ntasks-per-node=32 \
#         --time=12:00:00 several-nodes.sh
#
#SBATCH --requeue --open-mode=append
# shellcheck disable=SC2086 # $each, $SIMULATION and $args may each hold several words
export MCR_STORE=${MCR_STORE:-/lustre/mcr} MCR_JOB=${MCR_JOB:-$SLURM_JOB_NAME} MCR_CONFIG=$PWD/mcr-$SLURM_JOB_ID.toml
export LOCAL=${LOCAL:-/local/$USER-$SLURM_JOB_NAME}    # the simulation writes its checkpoints into LOCAL
SIMULATION=${SIMULATION:-$PWD/simulation}
cat >"$MCR_CONFIG" <<END
[cnc]
watch = "$LOCAL"
ranks = $SLURM_NTASKS
aggregators = ["$SLURMD_NODENAME:7117"]
END

# One task on each node. `srun` ignores --ntasks-per-node without --ntasks.
each="srun --overlap --ntasks=$SLURM_JOB_NUM_NODES --ntasks-per-node=1"
export RANKS=$((SLURM_NTASKS / SLURM_JOB_NUM_NODES))    # number of ranks of one node
# shellcheck disable=SC2016 # the words of the shell on each node
$each bash -c 'first=$((SLURM_NODEID * RANKS))
    mkdir -p "$LOCAL" && mcr restart --to "$LOCAL" --ranks $first-$((first + RANKS - 1))
    s=$?; exit $((s == 1 ? 99 : s))' # `srun` returns the highest code of all nodes, so a failure must have the highest
case $? in
    0 | 2) args=--restart ;;    # the newest checkpoint is in LOCAL (2: an older or doubtful checkpoint)
    3) args= ;;                 # no checkpoint was ever completed: a new run
    *) exit 1 ;;                # nothing was restored, see the output of mcr
esac

# With --disable-status, `srun` passes SIGINT on to its tasks. After SIGTERM, `srun` would kill its tasks at once.
srun --overlap --disable-status --nodes=1 --ntasks=1 --nodelist="$SLURMD_NODENAME" mcr anc & anc=$!
$each --disable-status mcr cnc & cnc=$!
srun --overlap --chdir="$LOCAL" $SIMULATION $args; status=$?
kill -INT $cnc; wait $cnc || echo "agents: exit code $?" >&2    # 5: not all files are committed
kill -INT $anc; wait $anc || echo "aggregator: exit code $?" >&2
exit $status
