"""No verb accepts, prints or passes on an address that contains a password."""

from __future__ import annotations

import importlib

import pytest

from imagenet_prep.core.address import LOGIN, refuse_login
from imagenet_prep.core.errors import UsageError
from imagenet_prep.read import make_dataset
from tests.kit.command import REPOSITORY
from tests.kit.messages import says

SECRET = "open-sesame-7f3a"
ADDRESSES = [
    f"https://ann:{SECRET}@mirror.edu/set",
    f"s3://{SECRET}@bucket/set",
    f"http://ann:{SECRET}/x@mirror.edu",
]
COMMANDS = [
    ("imagenet_prep.download", "--into here --base-url URL"),
    ("imagenet_prep.download", "--into here URL"),
    ("imagenet_prep.pipelines.prepare", "--source URL --out here"),
    ("imagenet_prep.pipelines.prepare", "--source=URL --out=here"),
    ("imagenet_prep.pipelines.prepare", "--source here --out URL"),
    ("imagenet_prep.pipelines.prepare", "--source here --out there -- --flink_master=URL"),
    ("imagenet_prep.preprocess_imagenet", "--local_scratch_dir here --raw_data_dir URL"),
    ("imagenet_prep.verify", "URL"),
    ("imagenet_prep.replicate", "URL --to here"),
    ("imagenet_prep.replicate", "here --to URL"),
    ("imagenet_prep.report", "URL"),
    ("imagenet_prep.show", "URL"),
    ("imagenet_prep.adopt", "URL"),
    ("imagenet_prep.resize", "-i URL -o here"),
    ("imagenet_prep.bench_read", "URL"),
    ("imagenet_prep.train", "--data-dir URL"),
    ("imagenet_prep.train", "--synthetic --mirror URL"),
    ("imagenet_prep.train", "--synthetic --log-dir URL"),
    ("imagenet_prep.install_horovod", "--cache URL"),
    ("imagenet_prep.pipelines.launch", "-np 2 -- train --data-dir URL"),
    ("imagenet_prep.pipelines.launch", "-np 2 -- python my_train.py --data URL"),
    ("imagenet_prep.run_on_hosts", "hosts -- curl URL"),
    (
        "imagenet_prep.pipelines.sagemaker",
        "--image i --role r --output URL --instance-type t -- train",
    ),
    ("imagenet_prep.pipelines.sagemaker_container", "--root URL"),
]


@pytest.mark.parametrize("address", ADDRESSES, ids=["https", "s3", "slash"])
@pytest.mark.parametrize(("verb", "words"), COMMANDS, ids=[f"{v} {w}" for v, w in COMMANDS])
def test_addresses_with_passwords_are_refused_without_printing_them(
    capsys: pytest.CaptureFixture[str], verb: str, words: str, address: str
) -> None:
    with pytest.raises(UsageError, match=says("address-contains-user-name-password")) as caught:
        importlib.import_module(verb).run(words.replace("URL", address).split())

    out, err = capsys.readouterr()
    assert (out, err) == ("", "")
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("address", ADDRESSES, ids=["https", "s3", "slash"])
def test_readers_refuse_passwords_without_printing_them(address: str) -> None:
    with pytest.raises(UsageError, match=says("address-contains-user-name-password")) as caught:
        make_dataset(address, "train", 8)

    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "word",
    [
        "/data/http:/x@y",
        "https://mirror.edu:8443/a@b",
        "http://[::1]:8080/x",
        "s3://bucket/user@example",
        '--environment_config={"url": "http://host:8080", "other": "gs://bucket"}',
        "--hosts=http://a:80,http://b:81",
        "hosts:ann@host:/path",
    ],
)
def test_other_words_pass(word: str) -> None:
    refuse_login(word)


def test_the_dag_uses_the_commands_login_pattern() -> None:
    dag = (REPOSITORY / "pipelines" / "airflow_dag.py").read_text("utf-8")

    assert f'r"""{LOGIN.pattern}"""' in dag
