"""The manifests of docs/kubernetes.md: valid, and with commands and images that exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from docker import rehearse
from imagenet_prep import train
from imagenet_prep.core import flags
from imagenet_prep.hosts.commands import read_hosts
from imagenet_prep.pipelines import launch, prepare
from tests.kit.command import REPOSITORY

pytestmark = pytest.mark.docker

FOLDER = REPOSITORY / "examples" / "kubernetes"
PAGE = (REPOSITORY / "docs" / "kubernetes.md").read_text("utf-8")
NAMES = sorted(path.name for path in FOLDER.glob("*.yaml"))


def documents(name: str) -> dict[str, dict[str, Any]]:
    """Returns the objects of a manifest by kind."""
    found = list(yaml.safe_load_all((FOLDER / name).read_text("utf-8")))
    return {each["kind"]: each for each in found}


def container(name: str) -> dict[str, Any]:
    """Returns the only container of a manifest's Job."""
    (only,) = documents(name)["Job"]["spec"]["template"]["spec"]["containers"]
    return only


def words_after(text: str, start: str) -> list[str]:
    """Returns the words of the shell command that follows `start`."""
    _, _, command = text.replace("\\\n", " ").partition(start)
    return shlex.split(command.splitlines()[0])


@pytest.mark.parametrize("version", ["1.33", "1.37"])
@pytest.mark.parametrize("name", NAMES)
def test_manifest_has_the_schema_of_kubernetes(name: str, version: str) -> None:
    kubernetes = pytest.importorskip("kubernetes_validate")
    for document in documents(name).values():
        kubernetes.validate(document, version, strict=True)


def test_wrong_field_of_a_manifest_is_found() -> None:
    kubernetes = pytest.importorskip("kubernetes_validate")
    job = documents("prepare.yaml")["Job"]
    job["spec"]["podFailurePolicies"] = job["spec"].pop("podFailurePolicy")
    with pytest.raises(kubernetes.ValidationError):
        kubernetes.validate(job, "1.37", strict=True)


def test_prepare_manifest_has_valid_flags() -> None:
    verb, *words = container("prepare.yaml")["args"]
    config = flags.parse(prepare.PrepareConfig, words, verb=verb, text="")

    assert verb == "prepare"
    cores = container("prepare.yaml")["resources"]["requests"]["cpu"]
    assert config.workers == int(cores)
    assert config.source == "/data/ilsvrc2012"


def test_torchrun_manifest_starts_one_rank_per_gpu() -> None:
    job = documents("train-torchrun.yaml")["Job"]
    (text,) = container("train-torchrun.yaml")["args"]
    options = dict(re.findall(r"--(nnodes|nproc-per-node|node-rank|master-addr)=(\S+)", text))
    config = train.parse(words_after(text, "imagenet_prep train"))

    assert options["nnodes"] == str(job["spec"]["completions"])
    gpus = container("train-torchrun.yaml")["resources"]["limits"]["nvidia.com/gpu"]
    assert options["nproc-per-node"] == str(gpus)
    assert options["node-rank"] == '"$JOB_COMPLETION_INDEX"'
    service = documents("train-torchrun.yaml")["Service"]["metadata"]["name"]
    subdomain = job["spec"]["template"]["spec"]["subdomain"]
    assert options["master-addr"] == f"{job['metadata']['name']}-0.{service}"
    assert subdomain == service
    assert config.framework == "pytorch"


def test_launch_manifest_starts_one_rank_per_gpu(tmp_path: Path) -> None:
    manifest = documents("train-launch.yaml")
    (text,) = container("train-launch.yaml")["args"]
    words = words_after(text, "imagenet-prep launch")
    config = flags.parse(launch.LaunchConfig, words, verb="launch", text="")
    hosts_file = tmp_path / "hosts"
    hosts_file.write_text(manifest["ConfigMap"]["data"]["hosts"])
    hosts = read_hosts(hosts_file)

    gpus = container("train-launch.yaml")["resources"]["limits"]["nvidia.com/gpu"]
    assert {host.slots for host in hosts} == {gpus}
    assert config.num_processes == sum(host.slots for host in hosts)
    assert len(hosts) == manifest["Job"]["spec"]["completions"]
    others = [host.address for host in hosts if not host.is_local]
    (waited,) = re.findall(r"for host in (.*); do", text)
    assert waited.split() == others
    assert train.parse(config.command[1:]).data_dir == "/data/imagenet-480"
    assert config.hosts == "/etc/imagenet-prep/hosts"


def test_jobs_end_if_exit_code_needs_a_person() -> None:
    for name in NAMES:
        (rule,) = documents(name)["Job"]["spec"]["podFailurePolicy"]["rules"]
        assert rule["action"] == "FailJob"
        assert {2, 3, 70} <= set(rule["onExitCodes"]["values"])
        assert {4, 75}.isdisjoint(rule["onExitCodes"]["values"])


def test_images_of_manifests_are_built_or_explained() -> None:
    targets = set(re.findall(r"^FROM \S+ AS (\S+)$", rehearse.DOCKERFILE.read_text(), re.MULTILINE))
    for name in NAMES:
        target = container(name)["image"].partition(":")[2]
        assert target in targets or target == "pytorch"
        assert name in PAGE


def test_documentation_has_the_secret_names_of_manifest() -> None:
    spec = documents("train-launch.yaml")["Job"]["spec"]["template"]["spec"]
    (keys,) = [volume["secret"] for volume in spec["volumes"] if "secret" in volume]
    sshd = (REPOSITORY / "docker" / "node" / "sshd_config").read_text()
    client = (REPOSITORY / "docker" / "node" / "ssh_config").read_text()

    assert f"kubectl create secret generic {keys['secretName']}" in PAGE
    for file in re.findall(r"/keys/(\S+)", sshd + client):
        assert f"--from-file {file}" in PAGE
