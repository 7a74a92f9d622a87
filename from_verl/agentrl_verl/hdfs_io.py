"""Files under verl's names, for scripts that prepare data."""

import os
import shutil
from collections.abc import Callable
from typing import Any, TypeVar

from agentrl.core.remote_files import is_remote

Function = TypeVar("Function", bound=Callable[..., Any])


def makedirs(name: str, mode: int = 0o777, exist_ok: bool = False, **_: Any) -> None:
    """As os.makedirs, for an address of another machine too."""
    if is_remote(name):
        _filesystem(name).makedirs(name, exist_ok=True)
        return
    os.makedirs(name, mode=mode, exist_ok=exist_ok)


def exists(path: str, **_: Any) -> bool:
    """Whether there is such a file or folder."""
    return bool(_filesystem(path).exists(path)) if is_remote(path) else os.path.exists(path)


def copy(src: str, dst: str, **kwargs: Any) -> bool:
    """Copy a file or a folder; one of the two may lie elsewhere."""
    if is_remote(dst):
        _filesystem(dst).put(src, dst, recursive=True)
    elif is_remote(src):
        _filesystem(src).get(src, dst, recursive=True)
    elif os.path.isdir(src):
        shutil.copytree(src, dst, **kwargs)
    else:
        shutil.copy(src, dst, **kwargs)
    return True


def copy_to_local(src: str, cache_dir: str | None = None, **_: Any) -> str:
    """A path on this machine for `src`. Raises UserError for an address that cannot be read."""
    from agentrl.core.remote_files import fetch

    return str(fetch(src, "data")) if is_remote(str(src)) else str(src)


def load_extern_type(file_path: str, type_name: str | None) -> Any:
    """The class or function of that name in a Python file, `pkg://a.module` or `file://path`; None without a path."""
    from agentrl.core.plugins import load_attribute

    if not file_path:
        return None
    return load_attribute(str(file_path).removeprefix("file://"), type_name, what="load_extern_type")


def _filesystem(address: str) -> Any:
    import fsspec

    return fsspec.filesystem(address.partition("://")[0])


def deprecated(replacement: str = "") -> Callable[[Function], Function]:
    """A decorator that changes nothing."""
    return lambda function: function
