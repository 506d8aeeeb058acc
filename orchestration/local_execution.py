"""Execution of a job in this process, by Dagster's public functions.

`execute_job` takes a job that can be made again, and creates a run that belongs to no code location. So the job is
handed over in memory, and the executor of the jobs adds the run to the location that its tags name.
"""

import json
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import dagster as dg

from icepuffin.orchestration.instance import LOCATION

_LABEL_TAG = ".dagster/repository"
"""Tag by which the UI lists the runs of a code location."""
LOCATION_TAGS: Mapping[str, str] = {_LABEL_TAG: f"__repository__@{LOCATION}", "dagster/code_location": LOCATION}
"""Tags of runs that this process starts for the code location of the UI and the daemon."""
_jobs: dict[str, dg.JobDefinition] = {}
"""Jobs that are being executed, by a name of the execution."""


def execute(
    job: dg.JobDefinition, instance: dg.DagsterInstance, *, run_config: Mapping[str, Any], tags: Mapping[str, str]
) -> dg.JobExecutionResult:
    """Execute the job by its own executor. A failed step is in the result and in the instance, and is not raised."""
    execution = str(uuid4())
    _jobs[execution] = job
    try:
        again = dg.build_reconstructable_job(__name__, job_of.__name__, (execution,))
        return dg.execute_job(again, instance, run_config=run_config, tags=tags)
    finally:
        del _jobs[execution]


def job_of(execution: str) -> dg.JobDefinition:
    """The job of an execution of this process."""
    return _jobs[execution]


def join_location(instance: dg.DagsterInstance, run: dg.DagsterRun) -> None:
    """Let a run without a code location belong to the one that its tags name: the UI and the daemon look it up there.

    The origin is made of its text in Dagster's database, as the database of an older release has it.
    """
    if run.remote_job_origin is not None or _LABEL_TAG not in run.tags:
        return
    repository, _, location = run.tags[_LABEL_TAG].partition("@")
    origin = {
        "__class__": "ExternalPipelineOrigin",
        "external_repository_origin": {
            "__class__": "ExternalRepositoryOrigin",
            "repository_location_origin": {
                "__class__": "RegisteredRepositoryLocationOrigin",
                "location_name": location,
            },
            "repository_name": repository,
        },
        "pipeline_name": run.job_name,
    }
    now = instance.get_run_by_id(run.run_id) or run  # the whole record is written
    instance.run_storage.replace_job_origin(now, dg.deserialize_value(json.dumps(origin)))  # type: ignore[arg-type]
