"""Tries the deployment of compose.yaml on an engine, and prints a table of what happened.

    python deploy/try_containers.py                             # docker, docker compose
    python deploy/try_containers.py --engine podman --compose podman-compose --build-option=--network=host

It builds the image, starts every service under a project name of its own, appends rows, waits for the sensor's runs,
restarts each service, kills one during a run, and removes its containers and volumes at the end. With --keep it leaves
them, and prints how to log in and how to remove them. Needs Python 3.11, openssl, and the right to kill processes of
containers. The first step that fails ends it, with logs, and exit code 1.
"""

import argparse
import base64
import json
import os
import secrets
import shlex
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

DEPLOY = Path(__file__).resolve().parent
PROJECT = "icepuffin-trial"
IMAGE = "icepuffin:0.2.0.dev0"
MAX_BYTES = 1_200_000_000
WORKERS = 2
WORKER_MEMORY = 3 << 30
OWNER = 10001
FIRST_ROWS, LATER_ROWS = 205_000, 60_000
MIN_RECALL = 0.95
WAIT_S = 1200
COMMAND_S = 3600
"""Seconds after which a command of the engine counts as hanging; a build is the longest"""
EXECUTORS = """import json, urllib.request
def get(path):
    return json.load(urllib.request.urlopen(f"http://code:4040/api/v1/applications{path}", timeout=30))
try:
    executors = get(f"/{get('')[0]['id']}/executors")
except (OSError, ValueError, LookupError):  # no application, or one whose page says that it is starting
    executors = []
print(json.dumps({executor["hostPort"]: executor["completedTasks"] for executor in executors}))
"""
UNLOADABLE = """export ICEPUFFIN_SETTINGS=/missing
dagster code-server start -h 127.0.0.1 -p 4001 -m icepuffin.orchestration.definitions >/dev/null 2>&1 & server=$!
until dagster api grpc-health-check -p 4001 >/dev/null; do sleep 1; done
if "$@" >/dev/null 2>&1; then echo well; else echo unwell; fi
kill -9 $server  # in the background of a shell it ignores other signals
"""
LIMIT = """from pathlib import Path
files = ("memory.max", "memory/memory.limit_in_bytes")
print(next(f for f in map(Path("/sys/fs/cgroup").joinpath, files) if f.exists()).read_text())
"""


class TrialError(Exception):
    """What a step saw instead of what it waited for."""


def output(*command: str, text: str | None = None, environment: dict[str, str] | None = None) -> str:
    """What a command prints. Raises TrialError with its errors where it fails or hangs."""
    try:
        done = subprocess.run(
            command,
            input=text,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            cwd=DEPLOY.parent,
            timeout=COMMAND_S,
        )
    except subprocess.TimeoutExpired as error:
        raise TrialError(f"{shlex.join(command)} did not end in {COMMAND_S} s") from error
    if done.returncode:
        raise TrialError(f"{shlex.join(command)} ended with {done.returncode}: {(done.stderr or done.stdout)[-2000:]}")
    return done.stdout.strip()


def until(what: str, probe: Callable[[], Any], seconds: float = WAIT_S) -> Any:
    """The first true value of `probe`, called every two seconds. Raises TrialError after `seconds`."""
    end = time.monotonic() + seconds
    while not (value := probe()):
        if time.monotonic() > end:
            raise TrialError(f"{what}: not in {seconds:.0f} s")
        time.sleep(2)
    return value


class Deployment:
    """The services of compose.yaml with the proxy of compose.login.yaml, as one engine runs them."""

    def __init__(self, engine: str, compose: str, port: int, login: Path) -> None:
        self.engine = engine
        files = ("-p", PROJECT, "-f", "deploy/compose.yaml", "-f", "deploy/compose.login.yaml")
        self.compose = (*shlex.split(compose), *files)
        self.port = port
        self.password = secrets.token_hex(8)
        self.login = login
        self.environment = os.environ | {
            "POSTGRES_PASSWORD": secrets.token_hex(16), "SPARK_WORKERS": str(WORKERS), "SPARK_WORKER_CORES": "1",
            "SPARK_WORKER_MEMORY": f"{WORKER_MEMORY >> 30}g", "ICEPUFFIN_LOGIN": str(login),
            "ICEPUFFIN_ADDRESS": "127.0.0.1", "COMPOSE_PROFILES": "metrics", "ICEPUFFIN_TLS_PORT": str(port),
        }  # fmt: skip

    @property
    def remnants(self) -> list[str]:
        """Containers and volumes of an earlier trial."""
        label = f"--filter=label=com.docker.compose.project={PROJECT}"
        containers = output(self.engine, "ps", "--all", "--format={{.Names}}", label).split()
        return containers + output(self.engine, "volume", "ls", "--quiet", label).split()

    @property
    def kept(self) -> str:
        """How to log in to a deployment that is left running, and how to remove it."""
        variables = f"POSTGRES_PASSWORD=any ICEPUFFIN_LOGIN={self.login} COMPOSE_PROFILES=metrics"
        remove = f"{variables} {shlex.join(self.compose)} down -v && rm -r {self.login}"
        return f"https://127.0.0.1:{self.port}, user trial, password {self.password}\nto remove it:\n{remove}"

    def remove(self) -> None:
        self.composed("down", "-v", "-t", "20")
        shutil.rmtree(self.login)
        (DEPLOY.parent / "oom").unlink(missing_ok=True)  # of podman, where a process took too much memory

    def composed(self, *arguments: str) -> str:
        return output(*self.compose, *arguments, environment=self.environment)

    def make_login(self) -> None:
        digest = output("openssl", "passwd", "-6", "-stdin", text=self.password)
        (self.login / "users").write_text(f"trial:{digest}\n", encoding="utf-8")
        subject = ("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2", "-nodes")
        pair = ("-keyout", str(self.login / "tls.key"), "-out", str(self.login / "tls.crt"))
        output("openssl", "req", "-x509", "-newkey", "rsa:2048", *subject, *pair)
        self.login.chmod(0o755)
        (self.login / "users").chmod(0o644)  # read by nobody; the key by root alone

    def containers(self, service: str = "") -> list[str]:
        """Names of the containers, of one service or of all."""
        label = "com.docker.compose"
        filters = [f"--filter=label={label}.project={PROJECT}"]
        filters += [f"--filter=label={label}.service={service}"] if service else []
        return output(self.engine, "ps", "--format={{.Names}}", *filters).split()

    def limit(self, container: str) -> int:
        """The limit of memory in bytes that the engine was given; 0 where there is none."""
        return int(output(self.engine, "inspect", "--format={{.HostConfig.Memory}}", container))

    def process(self, container: str, program: str) -> int:
        """Id of the container's first process. An engine in a virtual machine has ids that mean others here."""
        number = int(output(self.engine, "inspect", "--format={{.State.Pid}}", container))
        line = Path(f"/proc/{number}/cmdline")
        is_here = number > 0 and line.exists() and program.encode() in line.read_bytes()
        require(is_here, f"process {number} of {container} does not run {program} on this machine")
        return number

    def inside(self, container: str, *command: str, text: str | None = None) -> str:
        return output(self.engine, "exec", "-i", container, *command, text=text)

    def table(self, *arguments: str) -> dict[str, Any]:
        """The JSON of trial_table.py in the service `code`."""
        program = (DEPLOY / "trial_table.py").read_text(encoding="utf-8")
        (code,) = self.containers("code")
        printed = self.inside(code, "python", "-", *arguments, text=program)
        result: dict[str, Any] = json.loads(printed.splitlines()[-1])
        return result

    def is_well(self, container: str) -> bool:
        """By its own health check. Podman leaves that to a timer of systemd, which may be missing: it is run here."""
        if self.engine == "podman":
            return not subprocess.run(
                ["podman", "healthcheck", "run", container], capture_output=True, check=False
            ).returncode  # fmt: skip
        return output(self.engine, "inspect", "--format={{.State.Health.Status}}", container) == "healthy"

    def all_well(self) -> bool:
        names = self.containers()
        return len(names) == 7 + WORKERS and all(map(self.is_well, names))

    def request(self, path: str, query: str = "", *, password: str | None = None) -> tuple[int, Any]:
        """(status, document) of the proxy's answer."""
        trust = ssl.create_default_context(cafile=str(self.login / "tls.crt"))
        key = base64.b64encode(f"trial:{password or self.password}".encode()).decode()
        headers = {"Authorization": f"Basic {key}", "Content-Type": "application/json"}
        body = json.dumps({"query": query}).encode() if query else None
        try:
            address = f"https://127.0.0.1:{self.port}{path}"
            with urlopen(Request(address, body, headers), timeout=60, context=trust) as answer:
                return answer.status, json.load(answer)
        except HTTPError as error:
            return error.code, None

    def runs(self, status: str) -> list[dict[str, str]]:
        """Runs of the table's job that are in a state."""
        query = "{runsOrError(filter: {statuses: [%s]}) {... on Runs {results {runId jobName status}}}}"
        code, document = self.request("/graphql", query % status)
        if code != 200:
            return []
        return [run for run in document["data"]["runsOrError"]["results"] if run["jobName"].startswith("refresh_")]


class Trial:
    """The steps, in order. Each returns what it saw, in words."""

    def __init__(self, deployment: Deployment, build_options: list[str] | None) -> None:
        self.on = deployment
        self.build_options = build_options

    def image(self) -> str:
        """Image"""
        engine = self.on.engine
        if self.build_options is not None:
            output(engine, "build", *self.build_options, "-f", "deploy/Dockerfile", "-t", IMAGE, ".")
        size = int(output(engine, "image", "inspect", "--format={{.Size}}", IMAGE))
        require(size <= MAX_BYTES, f"the image has {size:,} bytes")
        return f"{size / 1e9:.2f} GB"

    def start(self) -> str:
        """All services up and well"""
        remnants = self.on.remnants
        require(not remnants, f"an earlier trial left {', '.join(remnants)}: remove them")
        self.on.make_login()
        self.on.composed("up", "-d")
        until("every service well", self.on.all_well)
        return f"{len(self.on.containers())} containers, with {WORKERS} Spark workers"

    def unloadable(self) -> str:
        """Definitions that do not load"""
        (code,) = self.on.containers("code")
        check = json.loads(output(self.on.engine, "inspect", "--format={{json .Config.Healthcheck.Test}}", code))
        start = ["sh", "-c"] if check[0] == "CMD-SHELL" else []
        program = start + [word.replace("4000", "4001") for word in check[1:]]
        word = self.on.inside(code, "sh", "-c", UNLOADABLE, "sh", *program).splitlines()[-1]
        require(word == "unwell", "the health check of `code` passes while its settings are missing")
        return "the health check of `code` fails for a code location whose settings are missing"

    def log_in(self) -> str:
        """Log-in by the proxy"""
        statuses = [self.on.request("/server_info", password=word)[0] for word in ("wrong", None)]
        require(statuses == [401, 200], f"answers {statuses}")
        (webserver,) = self.on.containers("webserver")
        ports = output(self.on.engine, "port", webserver)
        require(not ports, f"the webserver is published at {ports}")
        return "401 with a wrong password, 200 with the right one; the webserver has no port on the host"

    def owners(self) -> str:
        """Volumes' ownership"""
        program = "import os, sys; print(os.getuid(), *(os.stat(p).st_uid for p in sys.argv[1:]))"
        for service, folders in {"code": ("home", "warehouse"), "spark-worker": ("warehouse", "spark")}.items():
            for container in self.on.containers(service):
                paths = [f"/var/lib/icepuffin/{folder}" for folder in folders]
                users = self.on.inside(container, "python", "-c", program, *paths).split()
                require(set(users) == {str(OWNER)}, f"{container}: {users}")
                for path in paths:
                    self.on.inside(container, "sh", "-c", f"touch {path}/.trial && rm {path}/.trial")
        return f"processes and fresh volumes are user {OWNER}'s, who writes to them"

    def memory(self) -> str:
        """Memory limits"""
        without = [name for name in self.on.containers() if self.on.limit(name) <= 0]
        require(not without, f"without a limit: {without}")
        limits = {}
        for service in ("code", "webserver", "daemon", "spark-master", "spark-worker"):
            for container in self.on.containers(service):
                limits[container] = int(self.on.inside(container, "python", "-c", LIMIT))
        require(max(limits.values()) <= 8 << 30, f"limits {limits}")
        worker = self.on.containers("spark-worker")[0]
        require(limits[worker] == WORKER_MEMORY, f"{worker} has {limits[worker]:,} bytes")
        program = f"bytearray({WORKER_MEMORY + (512 << 20)})"
        try:
            self.on.inside(worker, "python", "-c", f"x = {program}; x[::4096] = bytes(len(x[::4096]))")
        except TrialError as error:
            require("137" in str(error), str(error))
        else:
            raise TrialError(f"a process took more than the limit of {worker}")
        until(f"{worker} well", lambda: self.on.is_well(worker))
        return "every service has one; a process that exceeds a worker's is killed (137), and the worker goes on"

    def index(self) -> str:
        """The sensor's runs index on the workers"""
        snapshot = self.on.table("append", str(FIRST_ROWS))["snapshot"]
        tasks: dict[str, int] = {}
        (code,) = self.on.containers("code")

        def published() -> bool:
            seen = json.loads(self.on.inside(code, "python", "-c", EXECUTORS))
            tasks.update({name: max(count, tasks.get(name, 0)) for name, count in seen.items() if count})
            return self.has_version(snapshot)

        until(f"a version of snapshot {snapshot}", published)
        tasks.pop("driver", None)
        require(len(tasks) == WORKERS, f"tasks by executor: {tasks}")
        return (
            f"{FIRST_ROWS:,} rows; tasks of the {WORKERS} executors: {sorted(tasks.values())}; {self.proof(snapshot)}"
        )

    def restarts(self) -> str:
        """Restart of each service"""
        names = self.on.containers()
        for container in names:
            output(self.on.engine, "restart", "-t", "20", container)
            until(f"{container} well after its restart", lambda name=container: self.on.is_well(name))
        until("every service well", self.on.all_well)
        snapshot = self.on.table("append", "1000")["snapshot"]
        until(f"a version of snapshot {snapshot}", lambda: self.has_version(snapshot))
        return f"{len(names)} containers in turn; all are well again; then 1,000 rows; {self.proof(snapshot)}"

    def kill(self) -> str:
        """kill -9 of `code` during a run"""
        snapshot = self.on.table("append", str(LATER_ROWS))["snapshot"]
        (run,) = until("a run in progress", lambda: self.on.runs("STARTED"))
        time.sleep(5)
        (code,) = self.on.containers("code")
        os.kill(self.on.process(code, "code-server"), signal.SIGKILL)
        require(run in self.on.runs("STARTED"), "the run was over before the kill")
        until("every service well after the kill", self.on.all_well)
        until(f"a version of snapshot {snapshot}", lambda: self.has_version(snapshot))
        (lost,) = (other for other in self.on.runs("FAILURE") if other["runId"] == run["runId"])
        return f"run {lost['runId'][:8]} {lost['status']}, and tried again: {self.proof(snapshot)}"

    def metrics(self) -> str:
        """Metrics for Prometheus"""
        (container,) = self.on.containers("metrics")
        program = "from urllib.request import urlopen; print(urlopen('http://127.0.0.1:9464/metrics').read().decode())"
        text = self.on.inside(container, "python", "-c", program)
        samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
        values = {name.partition("{")[0]: float(value) for name, value in samples.items()}
        seen = {name: values[f"icepuffin_{name}"] for name in ("table_up", "index_versions_behind", "index_recall")}
        require(seen["table_up"] == 1 and seen["index_versions_behind"] == 0, f"metrics {seen}")
        return f"{len(samples)} samples; {', '.join(f'{name} {value:g}' for name, value in seen.items())}"

    def has_version(self, snapshot: str) -> bool:
        state = self.on.table("state")
        return snapshot in state["versions"] and set(state["fresh"]) >= {"id"}

    def proof(self, snapshot: str) -> str:
        """Searches against all rows, and every byte and row of the version against the table."""
        answer = self.on.table("search")
        require(answer["rows"] == answer["distinct"], f"rows twice or lost: {answer}")
        require(answer["recall"] >= MIN_RECALL and answer["coverage"] == "exact-version", f"searches: {answer}")
        (code,) = self.on.containers("code")
        self.on.inside(code, "icepuffin", "index", "verify", "demo.packages")
        return f"{answer['rows']:,} rows verified, recall@10 {answer['recall']:.3f} at snapshot {snapshot}"


def require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise TrialError(otherwise)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="docker", choices=("docker", "podman"))
    parser.add_argument("--compose", default="docker compose", help="the compose command [docker compose]")
    parser.add_argument("--build-option", action="append", default=[], help="of the engine's build; may be repeated")
    parser.add_argument("--no-build", action="store_true", help=f"take the image {IMAGE} that is there")
    parser.add_argument("--port", type=int, default=18443, help="of the proxy, on loopback [18443]")
    parser.add_argument("--keep", action="store_true", help="leave containers and volumes where they are")
    return parser.parse_args()


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def outcome_of(step: Callable[[], str]) -> tuple[str, bool]:
    """(what a step saw, whether it failed)."""
    try:
        return step(), False
    except TrialError as error:
        return f"FAILED: {error}", True
    except (OSError, LookupError, ValueError) as error:  # an answer that is not as a step expects it
        return f"FAILED: {type(error).__name__}: {error}", True


def main() -> None:
    options = arguments()
    rows: list[tuple[str, str, str]] = []
    login = Path(tempfile.mkdtemp(prefix="icepuffin-login-"))  # containers that are kept go on reading it
    deployment = Deployment(options.engine, options.compose, options.port, login)
    trial = Trial(deployment, None if options.no_build else options.build_option)
    names = ("image", "start", "unloadable", "log_in", "owners", "memory", "index", "kill", "metrics", "restarts")
    failed = False
    try:
        for name in names:
            step: Callable[[], str] = getattr(trial, name)
            title = (step.__doc__ or "").strip()
            say(f"==> {title}")
            begun = time.monotonic()
            outcome, failed = outcome_of(step)
            rows.append((title, " ".join(outcome.split()), f"{time.monotonic() - begun:.0f}"))
            say(outcome)
            if failed:
                break
    finally:
        version = output(options.engine, "--version")
        print(f"{version}\n\n| step | what was seen | s |\n|---|---|---|")  # noqa: T201
        for row in rows:
            print("| " + " | ".join(row) + " |", flush=True)  # noqa: T201
        if failed:
            say(deployment.composed("logs", "--tail", "40"))
        if options.keep:
            say(deployment.kept)
        else:
            deployment.remove()
    sys.exit(failed)


if __name__ == "__main__":
    main()
