#!/usr/bin/env bash
# The GPU tests and short runs of the whole loop with the hf engine, on a machine with a GPU and agentrl's requirements:
#   bash tests/gpu/run.sh FOLDER
# Prints a line for each part; logs go to FOLDER.
set -u
out=${1:?a folder for logs}
start=$SECONDS
part() { echo "== $1: exit $2, $((SECONDS - start)) s"; }
export PYTHONPATH=.:from_verl:sandbox${PYTHONPATH:+:$PYTHONPATH}
agentrl() { python3 -m agentrl "$@"; }

timeout 330 python3 -m pytest -q -rs -m gpu -p no:cacheprovider --timeout 200 tests/gpu tests/engines/test_hf_cuda.py >"$out/tests.log" 2>&1
part tests $?
grep -E "^(FAILED|ERROR|[0-9]+ (passed|failed))" "$out/tests.log"
{
    agentrl data arithmetic --out .cache/gpu/data --train 1000 --val 100 --demos 3000 --difficulty tiny --slips parrot \
        --sloppiness 0.5 --retries 0
    agentrl model tiny .cache/gpu/model --tokenizer-data .cache/gpu/data/sft.jsonl
    agentrl sft --config-name tiny_sft model.path=.cache/gpu/model data.train_files=.cache/gpu/data/sft.jsonl \
        trainer.output_dir=.cache/gpu/warm trainer.device=cuda
} >"$out/prepare.log" 2>&1
part prepare $?
for name in sync:0 async:2; do
    agentrl train --config-name tiny model.path=.cache/gpu/warm data.train_files=.cache/gpu/data/train.parquet \
        data.val_files=.cache/gpu/data/val.parquet rollout.multi_turn.enable=true trainer.device=cuda \
        rollout.deterministic=false trainer.experiment_name="gpu-${name%:*}" \
        trainer.max_staleness="${name#*:}" trainer.total_training_steps=8 trainer.resume_mode=disable \
        >"$out/${name%:*}.log" 2>&1
    part "train ${name%:*}" $?
    grep -E "^(step|val|error)" "$out/${name%:*}.log" | tail -3
done
