"""Follows an Amazon SageMaker job: its states, and its log in CloudWatch."""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from imagenet_prep.core.errors import ImagenetPrepError, IncompleteError, UsageError, by_exit_code
from imagenet_prep.core.imports import require_modules
from imagenet_prep.core.strict_json import Json
from imagenet_prep.storage.connection import passes, reason
from imagenet_prep.storage.remote import RetryBudget, TransientError, with_retries

LOG_GROUP = "/aws/sagemaker/TrainingJobs"

_EXIT_CODE = re.compile(r"exit code: (\d+)", re.IGNORECASE)
_POLL_S = 20.0
_FOLLOW_S = 5.0
_RETRIES = 30


class MissingError(ImagenetPrepError):
    """The requested resource does not exist, or does not exist yet."""


class Service:
    """One of Amazon's services, with credentials from boto3's standard chain."""

    def __init__(self, name: str) -> None:
        require_modules("s3", name, "boto3")
        import boto3
        import botocore.exceptions

        self._name = name
        self._errors = botocore.exceptions
        with self._explained("client"):
            self.client = boto3.client(name)

    def call(self, operation: str, **arguments: Any) -> Json:
        """Calls an operation and returns its response."""
        with self._explained(operation):
            answer: Json = getattr(self.client, operation)(**arguments)
            return answer

    def insist(self, name: str, operation: str, **arguments: Any) -> Json:
        """Calls an operation, and retries if it fails; reports retries with `name`."""
        budget = RetryBudget(name, _RETRIES, remedy="The job continues.")
        return with_retries(lambda: self.call(operation, **arguments), budget)

    @contextlib.contextmanager
    def _explained(self, operation: str) -> Iterator[None]:
        try:
            yield
        except self._errors.ClientError as error:
            status = error.response["ResponseMetadata"].get("HTTPStatusCode", 0)
            code = error.response["Error"].get("Code", "")
            text = f"{self._name} {operation}: {code}: {error.response['Error'].get('Message', '')}"
            if passes(status, code):
                raise TransientError(text) from None
            missing = code == "ResourceNotFoundException"
            raise (MissingError if missing else ImagenetPrepError)(text) from None
        except (self._errors.ConnectionError, self._errors.HTTPClientError) as error:
            raise TransientError(f"{self._name} {operation}: {reason(error)}") from None
        except self._errors.BotoCoreError as error:
            raise UsageError(
                f"{self._name} {operation}: {error}. Set the region and credentials with AWS_… "
                "variables, ~/.aws or the machine's role."
            ) from None


class JobLog:
    """The CloudWatch lines of a job's containers."""

    def __init__(self, service: Service, job: str) -> None:
        self._service, self._job = service, job
        self._ends: dict[str, str] = {}  # the position up to which each stream was read
        self._is_refused = False

    def show(self, *, named: bool) -> None:
        """Prints the new lines, with the names of their hosts if `named`.

        If CloudWatch refuses the request, prints its message and reads no more lines.
        """
        if self._is_refused:
            return
        try:
            for stream in self._streams():
                host = "-".join(stream.removeprefix(f"{self._job}/").split("-")[:2])
                for message in self._new(stream):
                    print(f"[{host}] {message}" if named else message, flush=True)
        except MissingError:  # no container has printed anything yet
            return
        except ImagenetPrepError as error:
            print(f"{error}. The log is no longer followed.", file=sys.stderr, flush=True)
            self._is_refused = True

    def _streams(self) -> Iterator[str]:
        more: dict[str, str] = {}
        while True:
            answer = self._ask("describe_log_streams", logStreamNamePrefix=f"{self._job}/", **more)
            yield from (stream["logStreamName"] for stream in answer["logStreams"])
            if "nextToken" not in answer:
                return
            more = {"nextToken": answer["nextToken"]}

    def _new(self, stream: str) -> Iterator[str]:
        while True:
            end = self._ends.get(stream)
            more = {} if end is None else {"nextToken": end}
            answer = self._ask("get_log_events", logStreamName=stream, startFromHead=True, **more)
            self._ends[stream] = answer["nextForwardToken"]
            yield from (event["message"].rstrip("\n") for event in answer["events"])
            if self._ends[stream] == end:
                return

    def _ask(self, operation: str, **arguments: Any) -> Json:
        return self._service.insist("the job's log", operation, logGroupName=LOG_GROUP, **arguments)


def wait(
    service: Service,
    name: str,
    log: JobLog | None = None,
    *,
    pause: Callable[[float], object] = time.sleep,
) -> None:
    """Prints each state of a job, and the lines of `log` if given, until the job has ended."""
    printed = 0
    while True:
        job = service.insist(name, "describe_training_job", TrainingJobName=name)
        states = job.get("SecondaryStatusTransitions", [])
        for state in states[printed:]:
            at = state["StartTime"].strftime("%H:%M:%S")
            print(f"{at}  {state['Status']}: {state.get('StatusMessage', '')}", flush=True)
        printed = len(states)
        status = job["TrainingJobStatus"]
        if log is not None:
            if status in ("Completed", "Stopped", "Failed"):
                pause(_FOLLOW_S)  # the last lines arrive late
            log.show(named=job.get("ResourceConfig", {}).get("InstanceCount", 1) > 1)
        if status == "Completed" and job["SecondaryStatus"] == "Completed":
            model = job.get("ModelArtifacts", {}).get("S3ModelArtifacts", "none")
            billed = job.get("BillableTimeInSeconds", job.get("TrainingTimeInSeconds", 0))
            print(f"{name} has ended, {billed:,} s billed on each instance; model: {model}")
            return
        if status in ("Completed", "Stopped"):
            again = job.get("CheckpointConfig", {}).get("S3Uri", "")
            raise IncompleteError(
                f"{name}: {job['SecondaryStatus']}. To continue from its last checkpoint, submit "
                f"the same job with --checkpoints {again}."
            )
        if status == "Failed":
            reason = " ".join(job.get("FailureReason", "no reason given").split())
            code = _EXIT_CODE.search(reason)
            error = by_exit_code(int(code[1]) if code else None)
            raise error(
                f"{name}: {reason}. The output of each rank is in the CloudWatch log {name}."
            )
        pause(_POLL_S if log is None else _FOLLOW_S)
