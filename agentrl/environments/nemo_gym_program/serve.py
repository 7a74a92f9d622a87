"""Serves one resource server of NeMo Gym, in an interpreter that has it.

    python serve.py SETTINGS ADDRESS

SETTINGS is a file of JSON: `id` and `kwargs` (the server's configuration). ADDRESS is a file that gets the server's
URL; the last line of the output says why it does not. The server is the `app.py` of `resources_servers/ID`, in the
working folder or else in the package, or ID is a Python file. NeMo Gym itself would start Ray, too.
"""

import importlib.util
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

HOST = "127.0.0.1"


class Missing(Exception):
    """There is no such server."""


def main() -> None:
    """Serve, or end with the reason as the last line."""
    with open(sys.argv[1]) as file:
        settings = json.load(file)
    try:
        app, listener = prepared(settings["id"], settings["kwargs"])
    except (Exception, SystemExit) as error:
        sys.exit(refusal(error))
    import uvicorn

    class Announced(uvicorn.Server):
        """Says where it is once it answers."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            announce(f"http://{HOST}:{listener.getsockname()[1]}", sys.argv[2])

    Announced(uvicorn.Config(app, log_level="warning", timeout_keep_alive=30)).run([listener])


def announce(address: str, path: str) -> None:
    """Write the address, all of it at once."""
    with open(f"{path}.new", "w") as file:
        file.write(address)
    os.rename(f"{path}.new", path)


def prepared(id: str, kwargs: dict[str, Any]) -> tuple[Any, socket.socket]:
    """The application, and the socket that it will answer at."""
    import nemo_gym

    path = found(id, Path(nemo_gym.__file__).parents[1])
    listener = socket.create_server((HOST, 0), backlog=2048)
    name = path.stem if path.name != "app.py" else path.parent.name
    about = {"entrypoint": path.name, **configured(path), **kwargs, "host": HOST, "port": listener.getsockname()[1]}
    head = {"host": HOST, "port": 1}
    everything = {name: {"resources_servers": {name: about}}, "head_server": head}
    os.environ["NEMO_GYM_CONFIG_DICT"] = json.dumps(everything)
    os.environ["NEMO_GYM_CONFIG_PATH"] = name
    return application(path, {**about, "name": name}, head), listener


def found(id: str, packaged: Path) -> Path:
    """The file of a server."""
    if id.endswith(".py"):
        return Path(id).absolute()
    for folder in (Path.cwd(), packaged):
        path = folder / "resources_servers" / id / "app.py"
        if path.exists():
            return path
    raise Missing(f"there is no resources_servers/{id}/app.py here or in nemo_gym")


def configured(path: Path) -> dict[str, Any]:
    """The configuration that the server's own YAML gives it."""
    import yaml

    for file in sorted((path.parent / "configs").glob("*.yaml"), key=lambda file: file.stem != path.parent.name):
        for about in yaml.safe_load(file.read_text()).values():
            if isinstance(about, dict) and "resources_servers" in about:
                return dict(next(iter(about["resources_servers"].values())))
    return {}


def application(path: Path, about: dict[str, Any], head: dict[str, Any]) -> Any:
    """The application that NeMo Gym itself would serve, without Ray and logs."""
    from nemo_gym.config_types import BaseServerConfig
    from nemo_gym.global_config import get_global_config_dict
    from nemo_gym.server_utils import ServerClient

    client = ServerClient(head_server_config=BaseServerConfig(**head), global_config_dict=get_global_config_dict())
    kind = server_class(path)
    server = kind(config=kind.model_fields["config"].annotation.model_validate(about), server_client=client)
    app = server.setup_webserver()
    server.setup_liveness(app)
    server.setup_exception_middleware(app)
    return app


def server_class(path: Path) -> Any:
    """The class that a file defines."""
    from nemo_gym.base_resources_server import BaseResourcesServer

    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(f"served_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    own = [value for value in vars(module).values() if isinstance(value, type) and value.__module__ == spec.name]
    servers = [value for value in own if issubclass(value, BaseResourcesServer)]
    if not servers:
        raise Missing(f"{path} defines no resource server: derive one from SimpleResourcesServer")
    return servers[-1]


def refusal(error: BaseException) -> str:
    """A line for a server that cannot be started."""
    if isinstance(error, ModuleNotFoundError) and error.name == "nemo_gym":
        return f"there is no nemo_gym in {sys.executable}: run `{sys.executable} -m pip install nemo-gym`"
    if isinstance(error, ModuleNotFoundError):
        return f"it needs {error.name}: install its requirements.txt with `{sys.executable} -m pip install`"
    text = " ".join(str(error).split())
    return text if isinstance(error, Missing) else f"{type(error).__name__}: {text}"


if __name__ == "__main__":
    main()
