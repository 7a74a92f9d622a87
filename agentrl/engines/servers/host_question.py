"""Prints folders of packages and the GPU as JSON, for host.py. Standard library only: any interpreter runs it.

python - PACKAGE... < host_question.py
"""

import ctypes
import importlib.util
import json
import os
import shutil
import sys

MAJOR, MINOR = 75, 76
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR."""


def folder(name: str) -> str:
    """Folder of a package, or ""; a top-level name is found without importing it."""
    spec = importlib.util.find_spec(name)
    return next(iter(spec.submodule_search_locations or ()), "") if spec else ""


def gpu_count() -> int:
    """Number of GPUs that this process may use."""
    count = ctypes.c_int()
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    return 0 if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)) else count.value


def gpu() -> "tuple[list[int], int]":
    """Compute capability and bytes of the first GPU. Takes none of its memory: no context is made."""
    major, minor, device, size = ctypes.c_int(), ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return [0, 0], 0
    if cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0):
        return [0, 0], 0
    cuda.cuDeviceGetAttribute(ctypes.byref(major), MAJOR, device)
    cuda.cuDeviceGetAttribute(ctypes.byref(minor), MINOR, device)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(size), device)
    return [major.value, minor.value], size.value


def compiles() -> bool:
    """Whether nvcc and ninja are found."""
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    paths = os.pathsep.join([os.environ.get("PATH", ""), os.path.join(home, "bin"), os.path.dirname(sys.executable)])
    return all(shutil.which(program, path=paths) for program in ("nvcc", "ninja"))


if __name__ == "__main__":
    capability, memory = gpu()
    packages = {name: folder(name) for name in sys.argv[1:]}
    answer = {"packages": packages, "capability": capability, "memory": memory, "compiles": compiles()}
    sys.stdout.write(json.dumps(answer))
