"""Compiles the attention kernel for a model's heads, and ends; see early_kernels.py.

python -m agentrl.training.model.attention.compile_kernels HEADS KV_HEADS WIDTH
"""

import sys

import torch

from agentrl.training.model.attention.varlen import attention_kernel, shares_keys


def main() -> None:
    device = torch.device("cuda", 0)
    heads, kv_heads, width = map(int, sys.argv[1:])
    shares_keys(attention_kernel(device, heads, kv_heads, width), device, heads, kv_heads, width)


if __name__ == "__main__":
    main()
