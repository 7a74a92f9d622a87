#!/bin/bash
# Train on the nodes of a SLURM job: Ray's head and `agentrl train` on the first node, Ray's workers on the others.
#
#   sbatch --nodes=4 slurm.sh --config-name=mine trainer.default_local_dir=/shared/runs/mine
#
# The arguments are those of `agentrl train`. Submit it from a folder with the environment .venv that all nodes see.
# A job whose node dies runs again and resumes; two minutes before its time limit, the run saves and ends.
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --exclusive
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:TERM@120
set -u

source .venv/bin/activate
head=$SLURMD_NODENAME
address=$(python -c 'import ray; print(ray.util.get_node_ip_address())')
export RAY_ADDRESS=$address:6379 RAY_AUTH_MODE=token RAY_worker_niceness=0
RAY_AUTH_TOKEN=$(python -c 'import secrets; print(secrets.token_hex(32))')
export RAY_AUTH_TOKEN
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1} # srun does not inherit it
cpus=${SLURM_CPUS_ON_NODE:-1}

srun --overlap --nodes=1 --ntasks=1 --nodelist="$head" \
    ray start --head --node-ip-address="$address" --port=6379 --num-cpus="$cpus" \
    --include-dashboard=false --block > "ray-head-$SLURM_JOB_ID.log" 2>&1 &
for _ in $(seq 60); do # until the head answers
    (: < "/dev/tcp/$address/6379") 2> /dev/null && break
    sleep 1
done
others=$((SLURM_JOB_NUM_NODES - 1))
if [ "$others" -gt 0 ]; then
    srun --overlap --nodes="$others" --ntasks="$others" --exclude="$head" \
        sh -c "while true; do ray start --address=$RAY_ADDRESS --num-cpus=$cpus --block; sleep 5; done" \
        > "ray-workers-$SLURM_JOB_ID.log" 2>&1 &
fi

settings=(trainer.nnodes="$SLURM_JOB_NUM_NODES" trainer.n_gpus_per_node="${SLURM_GPUS_ON_NODE:-1}" "$@")
agentrl cluster check "${settings[@]}" || exit
agentrl train "${settings[@]}" &
run=$!
trap 'kill -TERM $run' TERM
wait $run # until the signal or the end
wait $run
