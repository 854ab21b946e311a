#!/bin/bash
# Checks what `vf-rl cluster slurm` prints with a SLURM of three nodes, all on this machine.
#
#   bash scripts/check_slurm.sh FOLDER           sbatch --test-only of several scripts
#   bash scripts/check_slurm.sh FOLDER run       and runs: one node, queued again, two nodes with Ray
#
# For Debian: it takes SLURM's packages from there into FOLDER, installs nothing, and ends what it
# started. Needs `vf-rl` on the path; to run on two nodes, `ray`, too.
set -eu

folder=$(realpath -m "$1")
configs=$(realpath "$(dirname "$0")/../configs")
lib=$folder/root/usr/lib/x86_64-linux-gnu
nodes=3
mkdir -p "$folder/debs"

if [[ ! -e $folder/root/usr/bin/sbatch ]]; then
    packages=(slurmctld slurmd slurm-client slurm-wlm-basic-plugins libmunge2 libhwloc15
        libjson-c5 liblua5.1-0 libyaml-0-2 libnuma1 libdbus-1-3 liblz4-1)
    (cd "$folder/debs" && apt-get download -q "${packages[@]}")
    for package in "$folder"/debs/*.deb; do dpkg -x "$package" "$folder/root"; done
fi

# Every start begins with an empty state.
work=$(mktemp -d "$folder/work-XXXX")
mkdir "$work/state"
cat >"$work/slurm.conf" <<END
ClusterName=check
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmctldPort=17817
AuthType=auth/none
CredType=cred/none
PluginDir=$lib/slurm-wlm
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool-%n
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd-%n.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
ReturnToService=2
NodeName=n[1-$nodes] NodeAddr=127.0.0.1 Port=[17901-1790$nodes] CPUs=2 RealMemory=4000
PartitionName=all Nodes=ALL Default=YES State=UP
END
export SLURM_CONF=$work/slurm.conf PATH=$folder/root/usr/bin:$PATH
export LD_LIBRARY_PATH=$lib:$lib/slurm-wlm

started=()
trap 'kill "${started[@]}" 2>/dev/null; wait' EXIT
start() {
    "$folder/root/usr/sbin/$@" >>"$work/out.log" 2>&1 &
    started+=($!)
}
start slurmctld-wlm -D
for ((node = 1; node <= nodes; node++)); do
    start slurmd-wlm -D -N "n$node" -d "$folder/root/usr/sbin/slurmstepd-wlm"
done

fail() {
    echo "check_slurm: $*; see $work" >&2
    exit 1
}

# Waits for at most so many seconds until a command succeeds.
within() {
    local deadline=$((SECONDS + $1))
    until "${@:2}"; do
        ((SECONDS < deadline)) || fail "not within $1 s: ${*:2}"
        sleep 0.2
    done
}
idle() { [[ $(sinfo -h -t idle -o %D 2>/dev/null) == "$nodes" ]]; }
within 30 idle
scontrol update "nodename=n[1-$nodes]" gres=gpu:8 # for no job to use, but to be asked for
cd "$work"

# What whole scripts ask for. Parts of nodes are cut to the size of these.
accepted() {
    vf-rl cluster slurm "$@" >job.sbatch
    bash -n job.sbatch
    sbatch --test-only job.sbatch || fail "not accepted: $*"
}
accepted "$configs/gpu-8x80gb-qwen3-8b-full.toml"
accepted "$configs/quickstart.toml" --gpus-per-node 0
accepted "$configs/quickstart.toml" --cpus-per-node 2 --memory-per-node 3
accepted "$configs/quickstart-vllm.toml" --set trainer.gpus=20
[[ ${2:-} == run ]] || exit 0

# One node: the job is queued again before its time limit, and resumes its run.
state() { squeue -h -j "$1" -o %T 2>/dev/null; }
over() { [[ -z $(state "$1") || $(state "$1") == COMPLETED ]]; }
stepped() { [[ $(wc -l 2>/dev/null <"$1") -ge $2 ]]; }
vf-rl cluster slurm "$configs/quickstart.toml" --gpus-per-node 0 --set max_steps=4 \
    --set save_steps=1 --set eval_strategy=no --set batch_size=16 >job.sbatch
job=$(sbatch --parsable job.sbatch)
within 240 stepped "runs/quickstart-$job/metrics.jsonl" 2
scancel --batch --signal=USR1 "$job"
echo "job $job: the time limit is said to be near, after $(wc -l <"runs/quickstart-$job/metrics.jsonl") steps"
requeued() { grep -q "resumed after step" "quickstart-$job.log"; }
within 400 requeued
within 240 over "$job"
steps=$(wc -l <"runs/quickstart-$job/metrics.jsonl")
[[ $steps == 4 ]] || fail "job $job took $steps steps, not 4"
grep -E "stopped by|resumed after" "quickstart-$job.log"
echo "job $job: queued again, resumed, 4 steps"

# Two nodes, with a Ray each. A rank of two cores fills one.
cat >two.toml <<END
model = "tiny"
env.id = "calculator"
[trainer]
accelerate_config = "$work/two.yaml"
[trainer.args]
max_steps = 2
batch_size = 16
eval_strategy = "no"
max_tokens = 32
max_prompt_len = 256
max_seq_len = 384
[cluster]
backend = "ray"
rank.cpus = 2
END
cat >two.yaml <<END
compute_environment: LOCAL_MACHINE
distributed_type: MULTI_CPU
num_machines: 1
num_processes: 2
use_cpu: true
END
vf-rl cluster slurm two.toml --gpus-per-node 0 --cpus-per-node 2 --memory-per-node 3 >job.sbatch
grep -q -- "--nodes=2" job.sbatch || fail "not two nodes"
job=$(sbatch --parsable job.sbatch)
within 400 over "$job"
cat "two-$job.log"
[[ $(wc -l <"runs/two-$job/metrics.jsonl") == 2 ]] || fail "job $job did not take its two steps"
echo "job $job: two nodes, two ranks, 2 steps"
