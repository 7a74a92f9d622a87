#!/usr/bin/env bash
# A warm-up on GSM8K's own answers, as launch scripts for verl are written: processes and folder come first.
set -euo pipefail
processes=$1 folder=$2
shift 2

ENGINE=(engine=fsdp model=hf_model optim=fsdp engine.strategy=fsdp2 engine.ulysses_sequence_parallel_size=${SP_SIZE:-1})
LORA=(model.lora_rank=8 model.lora_alpha=16 model.target_modules=all-linear)

torchrun --standalone --nnodes=1 --nproc_per_node=$processes -m verl.trainer.${TRAINER:-sft_trainer} \
    data.train_files=$PWD/train.parquet \
    data.prompt_key=extra_info \
    data.response_key=extra_info \
    data.prompt_dict_keys=['question'] \
    +data.response_dict_keys=['answer'] \
    data.micro_batch_size_per_gpu=4 \
    data.truncation=error \
    data.pad_mode=no_padding \
    "${ENGINE[@]}" "${LORA[@]}" \
    optim.lr=1e-4 \
    trainer.test_freq=after_each_epoch \
    trainer.default_local_dir="$folder" \
    trainer.default_hdfs_dir=null \
    checkpoint.save_contents=[model,optimizer,extra] \
    trainer.logger='["console"]' "$@"
