"""Imports everything that each process with a DAG needs; starts no thread."""

from __future__ import annotations

import asyncio
import sys

import a2wsgi
import httpx
from airflow.api_fastapi.execution_api import versions
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk.execution_time.supervisor import in_process_api_server
from cadwyn import HeadVersion, Version, VersionBundle
from sqlalchemy.orm import configure_mappers

from tests.commands.airflow import driver
from tests.kit.command import REPOSITORY

__all__ = ["DagBag", "a2wsgi", "driver"]


# Most of the server's start time is for the routes of older Airflow versions. The older of two
# supported versions also has the routes that have moved since.
newest, before, *_ = versions.bundle.versions
for change in (*newest.changes, *before.changes):
    change._bound_version_bundle = None
versions.bundle = VersionBundle(HeadVersion(), newest, before, Version("2000-01-01"))


async def _ask() -> None:
    """Requests no page: the server in Airflow's process builds its routes at the first request."""
    transport = httpx.ASGITransport(in_process_api_server().app)
    async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
        await client.get("/nothing")


asyncio.run(_ask())
configure_mappers()
# The DAG must not find our package, as on a user's system.
sys.path = [folder for folder in sys.path if folder != str(REPOSITORY)]
