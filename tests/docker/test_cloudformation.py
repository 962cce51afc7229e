"""The template of docs/ec2.md: access, deletion, and references between its resources.

cfn-lint is run by hand, since it is large: cfn-lint -t docker/cloudformation.yaml
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from tests.kit.command import REPOSITORY


class _Loader(yaml.SafeLoader):
    """Reads `!Ref X` and similar tags as {"Ref": X}."""


def _intrinsic(loader: Any, name: str, node: Any) -> dict[str, Any]:
    kinds = {yaml.ScalarNode: loader.construct_scalar, yaml.SequenceNode: loader.construct_sequence}
    return {name: kinds[type(node)](node)}


_Loader.add_multi_constructor("!", _intrinsic)

TEMPLATE = yaml.load((REPOSITORY / "docker" / "cloudformation.yaml").read_bytes(), _Loader)
PARAMETERS, RESOURCES = TEMPLATE["Parameters"], TEMPLATE["Resources"]
HOST = RESOURCES["Host"]["Properties"]["LaunchTemplateData"]


def test_references_of_the_template_exist() -> None:
    named = set()

    def look(value: Any) -> None:
        for key, inner in value.items() if isinstance(value, dict) else ():
            if key in ("Ref", "GetAtt", "If", "Equals", "Sub"):
                words = inner if isinstance(inner, list) else [inner]
                if key == "Sub":
                    words = re.findall(r"\$\{([\w:]+)\}", inner)
                named.update({"Ref": words, "Sub": words}.get(key, [str(words[0]).split(".")[0]]))
        children = value.values() if isinstance(value, dict) else value
        for inner in children if isinstance(value, dict | list) else ():
            look(inner)

    look(RESOURCES)
    look(TEMPLATE["Outputs"])
    there = {*PARAMETERS, *RESOURCES, *TEMPLATE["Conditions"]}
    assert {name for name in named if not name.startswith("AWS::")} - there == set()
    assert {*PARAMETERS, *RESOURCES} - named == {"Fleet", "FromMembers", "ToMembers", "Efa"}


def test_only_members_and_ssh_reach_a_member() -> None:
    (ssh,) = RESOURCES["Members"]["Properties"]["SecurityGroupIngress"]
    members = RESOURCES["FromMembers"]["Properties"]
    kinds = [resource["Type"] for resource in RESOURCES.values()]

    assert (ssh["IpProtocol"], ssh["FromPort"], ssh["ToPort"]) == ("tcp", 22, 22)
    assert ssh["CidrIp"] == {"Ref": "SshFrom"}
    assert members["GroupId"] == members["SourceSecurityGroupId"] == {"Ref": "Members"}
    assert members["IpProtocol"] == "-1"
    assert kinds.count("AWS::EC2::SecurityGroupIngress") == 1
    assert HOST["NetworkInterfaces"][0]["Groups"] == [{"Ref": "Members"}]


@pytest.mark.parametrize(
    ("network", "allowed"),
    [
        ("203.0.113.7/32", True),
        ("10.0.0.0/8", True),
        ("0.0.0.0/0", False),
        ("128.0.0.0/1", False),
        ("203.0.113.7", False),
    ],
)
def test_template_refuses_ssh_from_all_addresses(network: str, allowed: bool) -> None:
    assert "Default" not in PARAMETERS["SshFrom"]
    assert bool(re.fullmatch(PARAMETERS["SshFrom"]["AllowedPattern"], network)) == allowed


def test_guide_gives_exactly_the_parameters_without_default() -> None:
    page = (REPOSITORY / "docs" / "ec2.md").read_text("utf-8")
    command = page[page.index("aws cloudformation deploy") : page.index("describe-stacks")]
    given = set(re.findall(r"\b([A-Z]\w+)=", command))

    assert given == {name for name, each in PARAMETERS.items() if "Default" not in each}


def test_aws_commands_of_guides_exist_in_the_api() -> None:
    """Compares the flags of each `aws` command with botocore's definition of the operation."""
    botocore = pytest.importorskip("botocore")
    session = pytest.importorskip("botocore.session").get_session()
    pages = ("ec2.md", "sagemaker.md")
    text = "\n".join((REPOSITORY / "docs" / page).read_text("utf-8") for page in pages)
    commands = re.findall(r"aws (ec2|cloudformation|sagemaker) ([a-z-]+)([^`|>]*)", text)
    commands = [each for each in commands if each[1] != "deploy"]  # not an operation of the API
    unknown = []
    for service, name, words in commands:
        model = session.get_service_model(service)
        operations = {botocore.xform_name(each, "-"): each for each in model.operation_names}
        shape = model.operation_model(operations[name]).input_shape if name in operations else None
        known = {botocore.xform_name(each, "-") for each in (shape.members if shape else ())}
        # Flags of the command line itself.
        used = {*re.findall(r"--([a-z-]+)", words.splitlines()[0] if words else "")}
        if name not in operations or used - known - {"query", "output"}:
            unknown.append((service, name, used - known))

    assert {"modify-volume", "list-training-jobs", "stop-instances"} <= {c[1] for c in commands}
    assert unknown == []
