#!/bin/bash
# ascii-supply-networks/dagster-slurm PR#193 (2026): USR1 interrupts bash's `wait`, which returns 138 while the job lives.
trap : USR1
"$@" &
wait $!
