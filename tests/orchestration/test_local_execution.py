"""Runs that this process executes: by the job's own executor, and in the code location of their tags."""

import dagster as dg
import pytest

from icepuffin.orchestration import processes
from icepuffin.orchestration.instance import LOCATION
from icepuffin.orchestration.processes import LOCATION_TAGS, PROCESS_TAG, execute, join_location, run_process_executor


@dg.op
def observes(context: dg.OpExecutionContext) -> None:
    """Fails unless the run belongs to the location of its tags already: a killed run belongs to it, too."""
    run = context.instance.get_run_by_id(context.run_id)
    assert run is not None
    assert PROCESS_TAG in run.tags
    assert (run.remote_job_origin is not None) == ("dagster/code_location" in run.tags)


@dg.job(executor_def=run_process_executor)
def observing() -> None:
    observes()


@pytest.mark.parametrize("tags", [{}, LOCATION_TAGS], ids=["no location", "a location"])
def test_a_run_belongs_to_the_location_of_its_tags_from_its_first_step(
    instance: dg.DagsterInstance, tags: dict[str, str]
) -> None:
    result = execute(observing, instance, run_config={}, tags=tags)
    assert result.success
    (run,) = instance.get_runs()
    assert run.run_id == result.run_id
    assert dict(run.tags).items() >= dict(tags).items()
    if run.remote_job_origin:
        assert (run.remote_job_origin.location_name, run.remote_job_origin.job_name) == (LOCATION, "observing")
    assert processes._jobs == {}


def test_a_run_of_another_location_stays_there(instance: dg.DagsterInstance) -> None:
    """Dagster copies the tags to a run that repeats another one."""
    tags = {".dagster/repository": "__repository__@elsewhere"}
    execute(observing, instance, run_config={}, tags={**tags, "dagster/code_location": "elsewhere"})
    (run,) = instance.get_runs()
    join_location(instance, run.with_tags({**run.tags, **LOCATION_TAGS}))
    (run,) = instance.get_runs()
    assert run.remote_job_origin is not None
    assert run.remote_job_origin.location_name == "elsewhere"
