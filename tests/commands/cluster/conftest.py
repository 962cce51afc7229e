"""One cluster and one reference for all tests of a worker process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.dataset import Reference
from tests.kit.flink import Flink
from tests.kit.miniature import Miniature, miniature_for_tests
from tests.kit.runners import Cluster
from tests.kit.s3_proxy import Proxy, proxied
from tests.kit.s3_server import S3Server
from tests.kit.spark import Spark

FLINK = pytest.param("flink", marks=pytest.mark.flink)
# `make test` tests the common behaviour with Flink, and `make test-long` with both.
SPARK = pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.long])
SETTINGS = ("--train-shards", "60", "--validation-shards", "4", "--allow-subset")


@pytest.fixture(scope="session")
def way(s3: S3Server) -> Iterator[Proxy]:
    """The workers' path to the server; it fails as often as `left` says."""
    with proxied(s3.url, seed=4, faults=0, rate=0.05) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def environment(s3: S3Server, way: Proxy) -> dict[str, str]:
    """Additional variables of the workers' environment."""
    return {**s3.environment, "AWS_ENDPOINT_URL": way.url}


@pytest.fixture(scope="session")
def flink(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Iterator[Flink]:
    with Flink.running(tmp_path_factory.mktemp("flink"), environment, short_lived=True) as made:
        yield made


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Iterator[Spark]:
    with Spark.running(tmp_path_factory.mktemp("spark"), environment, short_lived=True) as made:
        yield made


@pytest.fixture(params=[FLINK, SPARK])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """Each cluster with its original number of members."""
    made: Cluster = request.getfixturevalue(request.param)
    made.complete()
    return made


@pytest.fixture(scope="session")
def many(shared_cache: Path) -> Miniature:
    """200 images: half a second of work for two workers; read-only."""
    return miniature_for_tests(shared_cache, num_train=170, num_validation=30, size=(500, 375))


@pytest.fixture(scope="session")
def reference(many: Miniature, shared_cache: Path) -> Reference:
    """The output of `many` on this machine, without a cluster; read-only."""
    return Reference.prepared(many.root, shared_cache / "cluster-reference", *SETTINGS)
