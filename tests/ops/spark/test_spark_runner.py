import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from icepuffin.ann_kernels.errors import NonFiniteVectorError
from icepuffin.ops.errors import IcepuffinError
from icepuffin.ops.rows.vector_column import VectorColumnError
from icepuffin.ops.spark import broadcasts, spark_runner
from icepuffin.ops.spark.errors import reported
from icepuffin.ops.spark.spark_runner import SparkRunner
from icepuffin.ops.spark.spark_types import spread_by
from icepuffin.ops.storage import ObjectMissingError, StorageError
from icepuffin.ops.tasks.task_runner import (
    BroadcastBytes,
    LocalRunner,
    RunnerError,
    TaskRunner,
    broadcast_by,
    received,
)
from tests.patience import until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_JOBS = count()
DYNAMIC = "spark.dynamicAllocation.enabled"


@dataclass(frozen=True, slots=True)
class Number:
    value: int
    folder: str = ""


def square(task: Number) -> int:
    return task.value**2


def refuse(task: Number) -> int:
    if task.value == 1:
        raise IcepuffinError("row 1 is bad")
    return task.value


def square_but_die_once(task: Number) -> int:
    """The first attempt at task 1 kills its Python worker, as a node that is lost would."""
    died = Path(task.folder) / "died"
    if task.value == 1 and not died.exists():
        died.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return task.value**2


@pytest.fixture(params=["local", pytest.param("spark", marks=pytest.mark.jvm)])
def runner(request: pytest.FixtureRequest) -> TaskRunner:
    return LocalRunner(1) if request.param == "local" else SparkRunner(request.getfixturevalue("spark"))


def test_results_come_in_the_order_of_the_tasks(runner: TaskRunner) -> None:
    tasks = [Number(value) for value in (5, 1, 4, 2, 3)]
    assert runner.run(square, tasks, label="squares") == [25, 1, 16, 4, 9]


@pytest.mark.jvm
def test_without_a_partition_by_number_results_are_the_same(
    spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Spark 4.0."""
    monkeypatch.setattr(spark_runner, "CARRIED_BYTES", 0)
    for kind in type(spark.range(1)).__mro__:
        monkeypatch.delattr(kind, "repartitionById", raising=False)
    tasks = [Number(value) for value in (5, 1, 4, 2, 3)]
    assert SparkRunner(spark).run(square, tasks, label="squares") == [25, 1, 16, 4, 9]


def stages(spark: "SparkSession", tasks: list[Number], runner: SparkRunner | None = None) -> list[int]:
    """Tasks of each stage of the jobs that square the numbers, the first one first."""
    group, context = f"squares {next(_JOBS)}", spark.sparkContext
    context.setJobGroup(group, group)
    try:
        assert (runner or SparkRunner(spark)).run(square, tasks, label="squares") == [task.value**2 for task in tasks]
    finally:
        for name in ("spark.jobGroup.id", "spark.job.description"):
            context.setLocalProperty(name, None)  # type: ignore[arg-type]  # None removes it
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    numbers = sorted({stage for job in jobs if job for stage in job.stageIds})  # Spark lists jobs in any order
    return [info.numTasks for number in numbers if (info := tracker.getStageInfo(number))]


@pytest.mark.jvm
def test_a_job_of_few_bytes_is_one_stage_with_a_task_each(
    spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = [Number(value) for value in range(7)]
    assert stages(spark, tasks) == [len(tasks)]
    monkeypatch.setattr(spark_runner, "CARRIED_BYTES", 0)
    assert len(stages(spark, tasks)) > 1, "more bytes are shuffled"


@pytest.mark.jvm
@pytest.mark.parametrize("carried", [0, 1 << 20])
def test_tasks_give_the_same_whether_the_function_carries_them(
    session: "SparkSession", carried: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_runner, "CARRIED_BYTES", carried)
    tasks = [Number(value) for value in (5, 1, 4, 2, 3)]
    assert SparkRunner(session).run(square, tasks, label="squares") == [25, 1, 16, 4, 9]


@pytest.mark.jvm
@pytest.mark.parametrize("carried", [0, 1 << 20])
@pytest.mark.parametrize("broadcast", [0, 1 << 20])
def test_tasks_in_place_give_the_same(
    session: "SparkSession", carried: int, broadcast: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_runner, "CARRIED_BYTES", carried)
    monkeypatch.setattr(spark_runner, "BROADCAST_BYTES", broadcast)
    tasks = [Number(value) for value in (5, 1, 4, 2, 3)]
    runner = SparkRunner(session, keep_places=True).in_place()
    for _ in range(2):
        assert runner.run(square, tasks, label="squares") == [25, 1, 16, 4, 9]


@pytest.mark.jvm
def test_tasks_in_place_are_partitions_that_spark_caches_and_none_is_shuffled(
    spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where they are cached is where Spark runs them."""
    tasks, slots = [Number(value) for value in range(6)], SparkRunner(spark).parallelism
    stages(spark, tasks, SparkRunner(spark).in_place())
    assert stages(spark, tasks, SparkRunner(spark).in_place()) == [slots]
    monkeypatch.setattr(spark_runner, "CARRIED_BYTES", 0)
    assert stages(spark, tasks, SparkRunner(spark).in_place()) == [1, slots], "one partition sends them to all"
    cached = [info for info in spark.sparkContext._jsc.sc().getRDDStorageInfo() if info.name().startswith("Range (")]
    assert {info.numCachedPartitions() for info in cached} == {slots}


@pytest.mark.parametrize(
    ("session", "keep_places", "expected"),
    [
        (SimpleNamespace(_jsc=None, conf={}), None, True),
        (SimpleNamespace(_jsc=None, conf={DYNAMIC: "false"}), None, True),
        (SimpleNamespace(_jsc=None, conf={DYNAMIC: "true"}), None, False),
        (SimpleNamespace(_jsc=None, conf={DYNAMIC: " TRUE "}), None, False),
        (SimpleNamespace(_jsc=None, conf={DYNAMIC: "true"}), True, True),
        (SimpleNamespace(_jsc=None, conf={}), False, False),
        (SimpleNamespace(conf={}), None, False),
        (SimpleNamespace(conf={}), True, True),
    ],
    ids=["classic", "fixed", "dynamic", "in capitals", "dynamic, wanted", "unwanted", "connect", "connect, wanted"],
)
def test_places_are_kept_by_classic_sessions_whose_executors_stay(
    session: SimpleNamespace, keep_places: bool | None, expected: bool
) -> None:
    runner = SparkRunner(session, keep_places=keep_places)  # type: ignore[arg-type]
    assert runner.in_place().keeps_places == expected
    assert not runner.keeps_places


def test_what_tasks_carry_is_just_under_what_pyspark_and_spark_send_otherwise() -> None:
    assert spark_runner.CARRIED_BYTES + broadcasts.INLINE_BYTES == 15 / 16 * 2**20
    assert spark_runner.BROADCAST_BYTES == 7 / 8 * 2**27


def test_data_is_broadcast_by_a_classic_session_where_it_is_large() -> None:
    classic: Any = SimpleNamespace(_jsc=None, sparkContext=SimpleNamespace(broadcast=len))
    connect: Any = SimpleNamespace()
    most = bytes(broadcasts.INLINE_BYTES)
    assert [broadcasts._broadcast(classic, data) for data in (b"", most, most + b"1")] == [b"", most, len(most) + 1]
    assert broadcasts._broadcast(connect, most + b"1") == most + b"1"


def test_tasks_come_in_batches_of_few_bytes_and_a_large_one_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(pickle.dumps(bytes(1_000)))
    monkeypatch.setattr(spark_runner, "_BATCH_BYTES", 3 * size)
    calls = spark_runner._calls(dict(enumerate([bytes(1_000)] * 4 + [bytes(9_000), b""])), ())
    assert [batch["number"].to_pylist() for batch in calls.to_batches()] == [[0, 1, 2], [3], [4], [5]]


def test_a_session_is_opened_once() -> None:
    sessions: list[SimpleNamespace] = []

    def opened() -> SimpleNamespace:
        sessions.append(SimpleNamespace(_jsc=None, conf={}))
        return sessions[-1]

    runner = SparkRunner(opened, keep_places=True)  # type: ignore[arg-type]
    assert runner.in_place()._session is runner._session
    assert len(sessions) == 1


@pytest.mark.jvm
def test_large_tasks_reach_spark_in_batches_of_few_bytes(
    spark: "SparkSession", own_session: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is a task of Spark, which may not be large on a cluster."""
    monkeypatch.setattr(spark_runner, "CARRIED_BYTES", 0)
    tasks, session = [Number(value) for value in range(5)], own_session
    session.conf.set("spark.sql.execution.arrow.localRelationThreshold", "0")
    assert stages(spark, tasks, SparkRunner(session))[0] == 1
    for size, batches in ((1, 5), (2 * len(pickle.dumps(tasks[0])), 3)):
        monkeypatch.setattr(spark_runner, "_BATCH_BYTES", size)
        assert stages(spark, tasks, SparkRunner(session))[0] == batches


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """A row of a matrix that all tasks have."""

    number: int
    matrix: npt.NDArray[np.float32]


def total(task: Row) -> float:
    return float(task.matrix[task.number].sum())


@pytest.mark.jvm
def test_an_array_of_all_tasks_reaches_spark_once(session: "SparkSession", monkeypatch: pytest.MonkeyPatch) -> None:
    """With each task, a codebook of many partitions would be gigabytes, and a task more than Spark sends."""
    matrix = np.arange(2**20, dtype=np.float32).reshape(8, -1)
    tasks, sent = [Row(number, matrix) for number in range(8)], []

    def spread(frame: "DataFrame", column: str, parts: int) -> "DataFrame":
        sent.append(frame.toArrow().nbytes)
        return spread_by(frame, column, parts)

    monkeypatch.setattr(spark_runner, "spread_by", spread)
    assert SparkRunner(session).run(total, tasks, label="totals") == matrix.sum(axis=1).tolist()
    assert len(sent) == 1
    assert sent[0] < matrix.nbytes / 100


@pytest.mark.jvm
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("rows", [0, -1])
def test_tasks_of_many_bytes_reach_sessions_whose_batches_have_no_limit(
    own_session: "SparkSession", rows: int, in_place: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_runner, "CARRIED_BYTES", 0)
    own_session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", rows)
    runner = SparkRunner(own_session, keep_places=in_place).in_place()
    assert runner.run(square, [Number(value) for value in (5, 1, 4)], label="squares") == [25, 1, 16]
    assert own_session.getActiveSession() is own_session, "the settings of another would hold for the user's statements"


STOPPED = """
from pyiceberg.catalog.noop import NoopCatalog
from pyspark.sql import SparkSession
from icepuffin.ops.search.reader import IndexReader
from icepuffin.ops.spark.knn_join import knn_join
from icepuffin.ops.spark.spark_runner import SparkRunner
from icepuffin.ops.spark.table_function import register_vector_search
from icepuffin.ops.sql.sql_session import SqlSession
from icepuffin.ops.tasks.task_runner import RunnerError

for stop in (lambda session: session.stop(), lambda session: session._sc._gateway.proc.kill()):
    session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    runner, left, reader = SparkRunner(session), session.range(1), IndexReader.__new__(IndexReader)
    placed = runner.in_place()
    stop(session)
    for use in (
        lambda: runner.run(len, ["a"], label="lengths"),
        lambda: placed.run(len, ["a"], label="lengths"),
        lambda: runner.parallelism,
        runner.in_place,
        lambda: SqlSession(print, spark=session).sql("SELECT 6 * 7"),
        lambda: knn_join(left, reader, on="query"),
        lambda: register_vector_search(session, NoopCatalog("a catalog")),
    ):
        try:
            use()
        except RunnerError as error:
            print(error)
"""


@pytest.mark.jvm
def test_a_session_that_was_stopped_is_an_error_of_ours() -> None:
    done = subprocess.run([sys.executable, "-c", STOPPED], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == 14 * [
        "the Spark session was stopped: make a SparkRunner of a live one, and open readers by it"
    ]


STOPPED_MEANWHILE = """
from pyspark.sql import SparkSession
from icepuffin.ops.search.reader import IndexReader
from icepuffin.ops.spark.errors import reported
from icepuffin.ops.spark.knn_join import knn_join
from icepuffin.ops.tasks.task_runner import RunnerError

class Reader(IndexReader):
    def search_request(self, *_):
        session.stop()
        session.range(1)

def plan():
    knn_join(left, Reader.__new__(Reader), on="query")

def work():
    with reported(session, "work", typed=False):
        frame = session.range(1)
        session.stop()
        frame.count()

for use in plan, work:
    session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    left = session.range(1)
    try:
        use()
    except RunnerError as error:
        print(error, type(error.__cause__).__name__)
"""


@pytest.mark.jvm
def test_a_session_that_is_stopped_meanwhile_is_an_error_of_ours() -> None:
    done = subprocess.run([sys.executable, "-c", STOPPED_MEANWHILE], capture_output=True, text=True, check=True)
    stopped = "the Spark session was stopped: make a SparkRunner of a live one, and open readers by it"
    assert done.stdout.splitlines() == [f"knn_join: {stopped} AttributeError", f"work: {stopped} Py4JJavaError"]


def note_and_wait(task: Path) -> None:
    task.touch()
    time.sleep(2)


@pytest.mark.jvm
def test_a_session_of_spark_connect_that_is_stopped_meanwhile_is_an_error_of_ours(
    connect_spark: "SparkSession", tmp_path: Path
) -> None:
    from pyspark.sql.connect.session import SparkSession as Client  # noqa: PLC0415  imports pyspark

    started, of_server = tmp_path / "started", connect_spark.client._builder.endpoint  # type: ignore[attr-defined]
    client: Any = Client.builder.remote(f"sc://{of_server}").create()
    with ThreadPoolExecutor(1) as threads:
        job = threads.submit(SparkRunner(client).run, note_and_wait, [started], label="waits")
        until(started.exists)
        client.stop()
        with pytest.raises(RunnerError, match=r"^waits: the Spark session was stopped: make a SparkRunner of a live"):
            job.result()


@pytest.mark.parametrize("use", [lambda runner: runner.parallelism, SparkRunner.in_place])
def test_a_session_of_spark_connect_that_was_stopped_is_an_error_of_ours(use: Callable[[SparkRunner], object]) -> None:
    from pyspark.sql.connect.session import SparkSession  # noqa: PLC0415  imports pyspark

    session = SparkSession("sc://127.0.0.1:1")  # which nobody has to answer
    session.client.close()
    with pytest.raises(RunnerError, match=r"^the Spark session was stopped: make a SparkRunner of a live one"):
        use(SparkRunner(session))


def die(task: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return task


@pytest.mark.jvm
def test_a_worker_that_is_lost_each_time_is_an_error_of_ours(session: "SparkSession") -> None:
    with pytest.raises(RunnerError, match=r"deaths: Spark failed: .*executors may lack memory: see their logs$"):
        SparkRunner(session).run(die, [1], label="deaths")


CALLED = "An error occurred while calling o7.x.\n: java.Outer: in awaitResult\n\tat x"
LARGEST = "spark.driver.maxResultSize, or search for fewer queries or rows at once"


@pytest.mark.parametrize(
    ("text", "typed", "expected"),
    [
        (f"{CALLED}\nCaused by: java.Inner: maxResultSize", False, f"java.Inner: maxResultSize; raise {LARGEST}"),
        (CALLED, False, "java.Outer: in awaitResult; see its log"),
        ("Answer from Java side is empty", False, "Answer from Java side is empty; see its log"),
        (
            "An exception was thrown\nTraceback (most recent call last):\n  File 'x'\nMemoryError: 12 GB\n",
            True,
            "MemoryError: 12 GB; see its log",
        ),
    ],
)
def test_errors_of_spark_are_reported_as_errors_of_ours(text: str, typed: bool, expected: str) -> None:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # noqa: PLC0415
    from pyspark.errors import PySparkException  # noqa: PLC0415

    error = PySparkException(text) if typed else Py4JError(text)
    live: Any = SimpleNamespace()
    with pytest.raises(RunnerError) as raised, reported(live, "work"):
        raise error
    assert str(raised.value) == f"work: Spark failed: {expected}"
    with pytest.raises(PySparkException if typed else RunnerError), reported(live, "work", typed=False):
        raise error
    with pytest.raises(KeyError), reported(live, "work"):
        raise KeyError


def files_of_driver(spark: "SparkSession") -> set[str]:
    """Names of the files that PySpark has for broadcasts on the driver's disk. Those of others may go meanwhile."""
    folders = os.walk(spark.sparkContext._temp_dir)  # type: ignore[type-var]
    return {str(name) for _, _, names in folders for name in names}


@pytest.mark.jvm
@pytest.mark.parametrize("in_place", [False, True])
def test_a_job_leaves_no_file_on_the_disk_of_the_driver(
    spark: "SparkSession", monkeypatch: pytest.MonkeyPatch, in_place: bool
) -> None:
    monkeypatch.setattr(broadcasts, "INLINE_BYTES", 0)
    monkeypatch.setattr(spark_runner, "CARRIED_BYTES", 0)
    runner, before = SparkRunner(spark, keep_places=in_place).in_place(), files_of_driver(spark)
    assert runner.run(square, [Number(value) for value in range(3)], label="squares") == [0, 1, 4]
    with pytest.raises(IcepuffinError, match="row 1 is bad"):
        runner.run(refuse, [Number(0), Number(1)], label="refusals")
    assert files_of_driver(spark) <= before


class Owner:
    """What jobs are for."""


@pytest.mark.jvm
def test_what_many_jobs_have_is_broadcast_for_as_long_as_its_owner_lives(
    spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broadcasts, "INLINE_BYTES", 10)
    runner, before, owner = SparkRunner(spark), files_of_driver(spark), Owner()
    assert broadcast_by(runner, b"few bytes", owner) == b"few bytes"
    assert broadcast_by(LocalRunner(1), b"many more bytes", owner) == b"many more bytes"
    data = broadcast_by(runner, b"many more bytes", owner)
    for _ in range(2):
        assert runner.run(partial(length, data), [1, 2], label="lengths") == [16, 17]
        assert len(files_of_driver(spark) - before) == 1
    del owner
    until(lambda: files_of_driver(spark) <= before)


def length(data: bytes | BroadcastBytes, task: int) -> int:
    return len(received(data)) + task


def test_no_tasks_give_no_results(runner: TaskRunner) -> None:
    assert runner.run(square, [], label="nothing") == []


def test_an_error_of_ours_keeps_its_type_and_message(runner: TaskRunner) -> None:
    with pytest.raises(IcepuffinError, match="row 1 is bad"):
        runner.run(refuse, [Number(0), Number(1)], label="refusals")


class Fault(NamedTuple):
    error: Exception
    times: int
    """Attempts that fail"""
    attempts: int
    """Attempts that are made"""


FAULTS = {
    "missing": Fault(ObjectMissingError("s3://lake/x does not exist"), 99, 1),
    "bad": Fault(VectorColumnError("has no vector", 7), 99, 1),
    "kernel": Fault(NonFiniteVectorError(3), 99, 1),
    "away": Fault(StorageError("s3://lake/x: the store is away"), 99, 4),
    "away a while": Fault(StorageError("s3://lake/x: the store is away"), 3, 4),
}


def fail(task: tuple[str, int, str]) -> int:
    """Fails as `FAULTS` says, and notes each attempt."""
    name, number, folder = task
    made = len(list(Path(folder).glob(f"{number}-*")))
    (Path(folder) / f"{number}-{made}").touch()
    if number == 1 and made < FAULTS[name].times:
        raise FAULTS[name].error
    return number


@pytest.mark.jvm
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("name", FAULTS)
def test_an_error_keeps_its_type_across_spark_and_only_what_may_pass_is_tried_again(
    session: "SparkSession", tmp_path: Path, name: str, in_place: bool
) -> None:
    fault, runner = FAULTS[name], SparkRunner(session, keep_places=in_place).in_place()
    tasks = [(name, number, str(tmp_path)) for number in range(3)]
    if fault.times < fault.attempts:
        assert runner.run(fail, tasks, label="faults") == [0, 1, 2]
    else:
        with pytest.raises(type(fault.error)) as raised:
            runner.run(fail, tasks, label="faults")
        assert str(raised.value) == str(fault.error)
        assert raised.value.__dict__ == fault.error.__dict__
    attempts = {number: len(list(tmp_path.glob(f"{number}-*"))) for number in range(3)}
    assert attempts == {0: 1, 1: fault.attempts, 2: 1}


def test_progress_ends_at_all_tasks(runner: TaskRunner) -> None:
    seen: list[tuple[int, int]] = []
    runner.run(square, [Number(1), Number(2)], label="squares", progress=lambda *at: seen.append(at))
    assert seen[-1] == (2, 2)


@pytest.mark.jvm
def test_a_killed_python_worker_is_retried(spark: "SparkSession", tmp_path: Path) -> None:
    tasks = [Number(value, str(tmp_path)) for value in range(4)]
    assert SparkRunner(spark).run(square_but_die_once, tasks, label="squares") == [0, 1, 4, 9]
    assert (tmp_path / "died").exists()


def test_executor_code_imports_neither_dagster_nor_pyspark() -> None:
    code = (
        "import sys\n"
        "from icepuffin.ops.tasks import run, scatter, shard_task\n"
        "from icepuffin.ops.tasks.sketches import theta_task\n"
        "print([name for name in ('dagster', 'pyspark') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
