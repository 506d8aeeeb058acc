"""The sensors without a daemon: evaluate each once, and run what it requests in this process."""

from dataclasses import dataclass
from typing import Any

import dagster as dg

from icepuffin.orchestration.factory import build
from icepuffin.orchestration.settings import Settings

_CURSOR = "demo/cursor/"
"""Prefix of the key under which a sensor's cursor is stored."""
_LOCATION_TAGS = {".dagster/repository": "__repository__@icepuffin"}
"""Tags by which the UI lists the runs of the code location"""
_WRAPPERS = frozenset({"DagsterExecutionStepExecutionError", "Failure", "RetryRequestedFromPolicy"})
"""Errors of Dagster that wrap the error of a step."""
_QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
"""Run config: the instance keeps every event, and the terminal belongs to the demo"""


@dataclass(frozen=True, slots=True)
class LocalRun:
    """A run that an evaluation requested, and how it ended."""

    partition_key: str
    """Id of the snapshot, as Dagster has it"""
    run_id: str
    succeeded: bool
    message: str
    """The error of the first failed step; empty when the run succeeded."""


def tick(settings: Settings, instance: dg.DagsterInstance) -> list[LocalRun]:
    """Evaluate the sensor of every table, and run what it requests, oldest snapshot first."""
    runs: list[LocalRun] = []
    definitions = build(settings)
    for sensor in definitions.get_repository_def().sensor_defs:
        key = _CURSOR + sensor.name
        cursor = instance.daemon_cursor_storage.get_cursor_values({key}).get(key)
        resources = dict(definitions.resources or {})
        context = dg.build_sensor_context(instance, cursor, definitions=definitions, resources=resources)
        context.log.setLevel("WARNING")
        evaluation: Any = sensor(context)
        job = definitions.resolve_job_def(sensor.job.name)
        runs += [_run(job, instance, request, sensor.name) for request in evaluation.run_requests or ()]
        instance.daemon_cursor_storage.set_cursor_values({key: evaluation.cursor or ""})
    return runs


def _run(job: dg.JobDefinition, instance: dg.DagsterInstance, request: dg.RunRequest, sensor: str) -> LocalRun:
    """Run the job for one snapshot. A failure is a result, and is in the instance."""
    key = request.partition_key or ""
    tags = {**request.tags, **_LOCATION_TAGS, "dagster/sensor_name": sensor}
    result = job.execute_in_process(_QUIET, instance, partition_key=key, raise_on_error=False, tags=tags)
    failures = [event for event in result.all_events if event.is_step_failure]
    message = _root_message(failures[0].step_failure_data.error) if failures else ""
    return LocalRun(key, result.run_id, result.success, message)


def _root_message(error: Any) -> str:
    """The message of the outermost error that is not Dagster's own: it names the file and the remedy."""
    while error is not None and error.cause is not None and error.cls_name in _WRAPPERS:
        error = error.cause
    if error is None:
        return "failed; see the run in the UI"
    name, _, text = error.message.strip().partition(": ")
    return str(text if name.startswith("icepuffin.") else error.message.strip())
