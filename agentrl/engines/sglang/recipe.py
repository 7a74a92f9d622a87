"""SGLang's environment: the pinned release for GPUs, and for CPUs the newest with only what its server imports."""

from agentrl.engines.servers.install import Recipe, Step

# The imports of `sglang.launch_server` on a CPU, without its GPU kernels: cpu_shim replaces those.
PLAIN = (  # noqa: SIM905
    "aiohttp cloudpickle dill distro einops fastapi gguf interegular IPython jsonschema loguru msgspec numba==0.65.1 "
    "numpy nvidia-ml-py openai==2.8.0 orjson packaging partial_json_parser pillow prometheus-client psutil pybase64 "
    "pydantic python-multipart pyzmq regex requests scipy sentencepiece==0.2.1 setproctitle soundfile==0.13.1 tiktoken "
    "tqdm transformers==5.17.0 uvicorn uvloop watchfiles xxhash zstandard"
).split()

RECIPE = Recipe(
    packages=("sglang",),
    gpu=(Step(("sglang==0.5.15.post1",)),),
    cpu=(
        # A build without CUDA where pip sees one: on Linux the plain name brings gigabytes of CUDA.
        Step(("torch==2.13.0+cpu",), fallback=("torch==2.13.0",)),
        Step(tuple(PLAIN)),
        Step(("sglang==0.5.23", "apache-tvm-ffi==0.1.11", "compressed-tensors==0.18.0", "torchvision==0.28.0"), False),
    ),
)
