#!/bin/bash
# Starts N copies of a command, each with its rank in Open MPI's variables, as mpirun does; the first that fails ends the others.
#   launch.sh N COMMAND...
count=$1; shift
export OMPI_COMM_WORLD_SIZE=$count MASTER_ADDR=127.0.0.1 MASTER_PORT=${MASTER_PORT:-29517}
trap 'kill -TERM $(jobs -p) 2>/dev/null; wait; exit 143' TERM INT
for ((rank = 0; rank < count; rank++)); do
    OMPI_COMM_WORLD_RANK=$rank OMPI_COMM_WORLD_LOCAL_RANK=$rank "$@" &
done
code=0
for ((left = count; left > 0; left--)); do
    wait -n || { code=$?; kill -KILL $(jobs -p) 2>/dev/null; break; }
done
wait
exit "$code"
