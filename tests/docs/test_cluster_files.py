"""The files of docs/cluster: a SLURM script, KubeRay's manifest, an image."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

pytestmark = pytest.mark.integration
FOLDER = Path(__file__).parents[2] / "docs" / "cluster"
CRD = "KUBERAY_RAYJOBS"
"""Names KubeRay's ray.io_rayjobs.yaml, of which this project has no copy."""


def manifest() -> Any:
    return yaml.safe_load((FOLDER / "kuberay.yaml").read_text())


def closed(schema: Any) -> Any:
    """The schema with no other fields than it lists, as `kubectl` checks it."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: closed(part) for name, part in schema.items() if name != "format"}
    if isinstance(found.get("properties"), dict) and "type" in found and "additionalProperties" not in found:
        found["additionalProperties"] = False
    return found


@pytest.mark.skipif(CRD not in os.environ, reason=f"{CRD} names no schema")
def test_the_manifest_fits_its_schema() -> None:
    (version,) = (
        found["schema"]["openAPIV3Schema"]
        for found in yaml.safe_load(Path(os.environ[CRD]).read_text())["spec"]["versions"]
        if found["name"] == "v1"
    )
    version["properties"]["metadata"] = {}  # the API server's
    jsonschema.validate(manifest(), closed(version))


def test_each_group_of_the_manifest_is_whole() -> None:
    cluster = manifest()["spec"]["rayClusterSpec"]
    assert cluster["authOptions"] == {"mode": "token"}
    (gpus,) = cluster["workerGroupSpecs"]
    assert gpus["replicas"] == gpus["minReplicas"] == gpus["maxReplicas"] == 4
    for group in (cluster["headGroupSpec"], gpus):
        pod = group["template"]["spec"]
        mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
        assert mounts == {"shared": "/shared", "memory": "/dev/shm"}
        assert {volume["name"] for volume in pod["volumes"]} == set(mounts)


def test_the_script_is_bash() -> None:
    subprocess.run(["bash", "-n", FOLDER / "slurm.sh"], check=True)


def test_the_image_copies_files_that_there_are() -> None:
    text = (FOLDER / "Dockerfile").read_text()
    named = {name for line in re.findall(r"^COPY (.+)$", text, re.MULTILINE) for name in line.split()[:-1]}
    sent = {line[1:] for line in (FOLDER / "Dockerfile.dockerignore").read_text().splitlines() if line[0] == "!"}
    assert named == sent
    assert all((FOLDER.parents[1] / name).exists() for name in named)
