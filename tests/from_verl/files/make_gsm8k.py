"""Preprocess questions to parquet, as one does for GSM8K."""

import argparse
import os
import re

from verl.utils.hdfs_io import copy, makedirs


def extract_solution(solution_str):
    solution = re.search("#### (\\-?[0-9\\.\\,]+)", solution_str)
    assert solution is not None
    final_solution = solution.group(0)
    return final_solution.split("#### ")[1].replace(",", "")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_dir", default="~/data/gsm8k")
    parser.add_argument("--hdfs_dir", default=None)
    args = parser.parse_args()
    data_source = "openai/gsm8k"
    raw = [
        {
            "question": f"A farmer has {a} hens and buys {b} more. How many hens has he?",
            "answer": f"{a}+{b}={a + b}\n#### {a + b}",
        }
        for a in range(2, 10)
        for b in range(3, 7)
    ]

    def make(split, idx, example):
        question = example["question"]
        solution = extract_solution(example["answer"])
        return {
            "data_source": data_source,
            "prompt": [
                {
                    "role": "system",
                    "content": "You are a math expert. You must use the `calc_gsm8k_reward` tool. Put your final answer in the format of `#### <answer>`.",
                },
                {"role": "user", "content": question},
            ],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": solution},
            "extra_info": {
                "split": split,
                "index": idx,
                "answer": example["answer"],
                "question": question,
                "need_tools_kwargs": True,
                "tools_kwargs": {"calc_gsm8k_reward": {"create_kwargs": {"ground_truth": solution}}},
                "interaction_kwargs": {"query": question, "ground_truth": solution, "name": "gsm8k"},
            },
            "agent_name": "tool_agent",
        }

    local_dir = os.path.expanduser(args.local_dir)
    makedirs(local_dir, exist_ok=True)
    rows = [make("train", i, r) for i, r in enumerate(raw)]
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(rows[:24]), os.path.join(local_dir, "train.parquet"))
    pq.write_table(pa.Table.from_pylist(rows[24:]), os.path.join(local_dir, "test.parquet"))
    if args.hdfs_dir is not None:
        makedirs(args.hdfs_dir)
        copy(src=local_dir, dst=args.hdfs_dir)
