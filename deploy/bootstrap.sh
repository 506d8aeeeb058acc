#!/bin/sh
# Sets up everything that a command needs, then runs it: sh deploy/bootstrap.sh setup | demo [DIR] | lint | quick | test | check | durations [FILES] | bench | mutants | clauses | nightly | flaky | fuzz | engines | trino | presto | planners | catalogs | crowd CATALOG | stores | ranges | resolve | pythons | charts CHART
# Needs Debian with Python 3.11. Makes .venv from requirements/lock.txt, finds or gets Java 17. Quick when nothing changed.
set -eu
cd "$(dirname "$0")/.."
root=$PWD
venv=$root/.venv
python=$venv/bin/python
cache=${ICEPUFFIN_CACHE:-$HOME/.cache/icepuffin}

say() { printf '==> %s\n' "$*"; }
die() { printf 'icepuffin: %s\n' "$*" >&2; exit 1; }

. deploy/java.sh

# Runs a command as root where that needs no password; fails otherwise.
as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"
    elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then sudo -n "$@"
    else return 1
    fi
}

apt_install() {
    command -v apt-get >/dev/null && as_root true || return 1
    say "installing $*"
    mkdir -p "$cache"
    as_root sh -c "export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
        apt-get -q update && apt-get -q install -y --no-install-recommends $*" >"$cache/apt.log" 2>&1 && return
    tail -n 5 "$cache/apt.log" >&2
    return 1
}

# apt_unpack FOLDER PACKAGE...: fetches and unpacks Debian packages without root, with folders of apt's in our cache.
apt_unpack() {
    folder=$1
    shift
    command -v apt-get >/dev/null || return 1
    rm -rf "$folder" "$cache/apt"
    mkdir -p "$folder" "$cache/apt/state/lists/partial" "$cache/apt/cache/archives/partial" "$cache/apt/packages"
    cat >"$cache/apt/apt.conf" <<END
Dir::State "$cache/apt/state";
Dir::State::status "/var/lib/dpkg/status";
Dir::Cache "$cache/apt/cache";
END
    (
        APT_CONFIG=$cache/apt/apt.conf
        export APT_CONFIG
        cd "$cache/apt/packages" && apt-get -qq update && apt-get -qq download "$@"
    ) >&2 || return 1
    for package in "$cache"/apt/packages/*.deb; do
        dpkg-deb -x "$package" "$folder" || return 1
    done
    rm -rf "$cache/apt"
}

is_python() { command -v "$1" >/dev/null && "$1" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; }

# Sets base to a Python 3.11.
find_python() {
    for base in python3.11 python3 python; do
        is_python "$base" && return
    done
    base=python3.11
    apt_install python3.11 python3.11-venv && is_python "$base" && return
    die "Python 3.11 is needed and was not found; as root, on Debian 12: apt-get install python3.11 python3.11-venv"
}

# A virtual environment with pip. Debian keeps pip apart, in python3.11-venv.
make_venv() {
    "$base" -c 'import ensurepip' 2>/dev/null || apt_install python3.11-venv || true
    "$base" -m venv --without-pip "$venv" || die "no virtual environment could be made with $base in $venv"
    "$python" -m ensurepip >/dev/null 2>&1 && return
    say "unpacking Debian's pip into $cache/pip"
    apt_unpack "$cache/pip" python3-pip-whl ||
        die "Python's venv module is incomplete; as root: apt-get install python3.11-venv"
    wheel=$(echo "$cache"/pip/usr/share/python-wheels/pip-*.whl)
    "$python" "$wheel/pip" install --quiet --disable-pip-version-check --no-index "$wheel"
}

# .venv/.stamp says for which lock file the environment is complete, and with which packages: those of the demo, or all. A
# set-up that was cut off left .venv/.unfinished. packages demo | all
packages() {
    find_python
    find_java "$base"
    stamp=$(cat requirements/lock.txt requirements/uv.txt pyproject.toml deploy/packages.py | cksum)
    has "$1" || exclusively fill_venv "$1"
    PATH=$venv/bin:$PATH
    export PATH
}

has() {
    is_python "$python" || return 1
    case $(cat "$venv/.stamp" 2>/dev/null) in "$stamp all" | "$stamp $1") ;; *) return 1 ;; esac
}

# .venv/.kernels says for which sources numba's cache is complete.
kernels() {
    sources=$(cat requirements/lock.txt ann_kernels/*.py ann_kernels/*/*.py puffin/*.py puffin/*/*.py | cksum)
    has_kernels || exclusively compile_kernels
}

has_kernels() { [ "$(cat "$venv/.kernels" 2>/dev/null)" = "$sources" ]; }

setup() {
    packages all
    kernels
}

# Two commands may be started at once; the second waits for the environment of the first.
exclusively() {
    mkdir -p .cache
    exec 9>.cache/setup.lock
    flock 9
    "$@"
    exec 9>&-
}

fill_venv() {
    if has "$1"; then return; fi
    if [ "$1" = demo ]; then size="0.7 GB"; else size="0.9 GB"; fi
    say "packages into $venv: up to $size to fetch, at the end 0.4 GB of Spark without a line; then half a minute"
    if [ -e "$venv/.unfinished" ] || ! is_python "$python"; then rm -rf "$venv/bin" "$venv"; fi
    mkdir -p "$venv"
    touch "$venv/.unfinished"
    rm -f "$venv/.stamp" "$venv/spark-classes.jsa"
    measured packages install_packages "$1"
    printf '%s' "$stamp $1" >"$venv/.stamp"
    rm "$venv/.unfinished"
}

install_packages() {
    is_python "$python" || make_venv
    "$python" -m pip --version >/dev/null || die "$venv has no pip: it was not made here; move it away"
    "$python" deploy/packages.py "$1"
}

compile_kernels() {
    if has_kernels; then return; fi
    say "kernels for this processor: a minute, once"
    measured kernels "$python" -m icepuffin.ops.process.kernel_cache
    printf '%s' "$sources" >"$venv/.kernels"
}

# measured STAGE COMMAND...: runs it, and notes `STAGE wall cpu`, in seconds, in .venv/.setup-times.
measured() {
    stage=$1
    notes=.cache/$stage.times
    shift
    times >"$notes"
    begun=$(date +%s.%N)
    "$@"
    times >>"$notes"
    line=$(awk -v stage="$stage" -v begun="$begun" -v ended="$(date +%s.%N)" '
        { gsub(",", "."); split($1, own, "m"); split($2, of_system, "m") }
        { cpu += (NR > 2 ? 1 : -1) * (60 * (own[1] + of_system[1]) + own[2] + of_system[2]) }
        END { printf "%s %.1f %.1f", stage, ended - begun, cpu }' "$notes")
    grep -sv "^$stage " "$venv/.setup-times" >"$notes" || true
    printf '%s\n' "$line" >>"$notes"
    mv "$notes" "$venv/.setup-times"
}

# Runs one step of the test run. `durations` has it measured.
step() {
    if [ "${ICEPUFFIN_DURATIONS:-}" ]; then "$python" "$root/tests/durations.py" stage "$@"; else shift && "$@"; fi
}

lint() {
    step "lint" ruff check .
    step "format" ruff format --check .
    step "types" mypy
    step "import rules" lint-imports
}

# A JVM of the tests maps the classes of Spark in place of reading them: half of the time that a session takes to start.
# Made beside the kernels, so under a lock of its own.
classes() {
    mkdir -p .cache
    exec 8>.cache/classes.lock
    flock 8
    [ ! -e "$venv/spark-classes.jsa" ] || return 0
    python -m tests.services.class_archive >"$venv/spark-classes.log" 2>&1 || { cat "$venv/spark-classes.log" >&2; return 1; }
}

# Lint fills the time in which tests wait for servers. What it finds is printed at its end.
check() {
    step "classes of Spark" sh "$root/deploy/bootstrap.sh" classes &
    archiving=$!
    kernels
    wait "$archiving"
    say "lint, types and import rules, beside the tests"
    (found=$(nice -n 5 sh "$root/deploy/bootstrap.sh" lint 2>&1) || { printf '%s\n' "$found" >&2; exit 1; }) &
    linting=$!
    say "tests"
    status=0
    suite "$@" || status=$?
    wait "$linting" || { say "lint failed: its lines are above"; exit 1; }
    return "$status"
}

suite() {
    # The tests start some hundred processes: each would compile our sources again, where the variable forbids to keep them
    unset PYTHONDONTWRITEBYTECODE
    # BLAS's threads spin while they wait for the next small product: up to a third of the processors' time
    export OPENBLAS_NUM_THREADS=1
    # Python orders sets by chance; of one commit they have one order, as what tests draw is the same
    PYTHONHASHSEED=${PYTHONHASHSEED:-$(python -c 'from tests.draws import SEED; print(SEED % 2**32)')}
    export PYTHONHASHSEED
    # Where no files are named, tests that one commit in some runs are drawn: tests/selection.py
    if [ $# = 0 ]; then export ICEPUFFIN_OF_COMMIT=1; fi
    # A third of a test's time is waiting for servers: three workers keep two cores busy. tests/scheduling.py orders files.
    # A test that ends its worker has failed; run again it would end the next, too.
    python -m pytest --numprocesses 3 --max-worker-restart 0 --dist loadfile --durations 12 "$@"
}

# All that CI runs, measured, or only the tests of some files.
durations() {
    ICEPUFFIN_DURATIONS=$PWD/.cache/durations
    export ICEPUFFIN_DURATIONS
    rm -rf "$ICEPUFFIN_DURATIONS"
    status=0
    if [ $# = 0 ]; then check || status=$?; else suite "$@" || status=$?; fi
    python -m tests.durations table "$ICEPUFFIN_DURATIONS"
    return "$status"
}

# Sets tool to an environment of its own, in .cache: only who measures the tests needs it. tool NAME REQUIREMENTS
tool() {
    tool=$PWD/.cache/$1
    lock=$(cksum <"$2")
    if [ "$(cat "$tool/.stamp" 2>/dev/null)" != "$lock" ]; then
        say "setting up $tool"
        rm -rf "$tool"
        "$base" -m venv "$tool"
        "$tool/bin/python" -m pip install -qq --disable-pip-version-check --no-deps --require-hashes -r "$2"
        printf '%s' "$lock" >"$tool/.stamp"
    fi
}

# Cosmic Ray works on a copy of the tree from outside; Atheris is loaded into the process that parses.
mutants() {
    tool mutation-tool requirements/mutants.txt
    "$tool/bin/python" tests/mutants.py "$@"
}

# Settings as those of `check`.
nightly() {
    classes
    unset PYTHONDONTWRITEBYTECODE
    OPENBLAS_NUM_THREADS=1 python -m tests.nightly "$@"
}

fuzz() {
    tool fuzzer requirements/fuzz.txt
    PYTHONPATH=$(echo "$tool"/lib/python*/site-packages) python -m tests.campaigns.fuzz "$@"
}

# Other engines read tables with indexes. They run in that environment, without the packages of the project.
engines() {
    tool engines requirements/engines.txt
    python -m tests.interop.engines --python "$tool/bin/python" "$@"
}

# The servers run in two environments, as one of them needs other versions. Their clients, boto3 and thrift, are loaded
# from the second: what it and the project have is locked to one version.
catalog_servers() {
    tool s3tables requirements/s3tables.txt
    export ICEPUFFIN_S3_TABLES_SERVER="$tool/bin/ministack"
    tool catalogs requirements/catalogs.txt
    export ICEPUFFIN_CATALOG_SERVERS="$tool/bin/python" PYTHONPATH="$(echo "$tool"/lib/python*/site-packages)"
}

catalogs() {
    catalog_servers
    python -m pytest --numprocesses 0 --verbose tests/interop/test_other_catalogs.py tests/interop/test_rest_kit.py "$@"
}

crowd() {
    catalog_servers
    python -m tests.campaigns "crowd-$@"
}

# Servers for GCS and ADLS: Go compiles one, Node.js runs the other. Go's checksum database and a lock file say what
# their packages must be.
stores() {
    servers=$PWD/.cache/stores
    gcs=github.com/fsouza/fake-gcs-server@v1.56.1
    lock=$(cat requirements/azurite/*.json | cksum)
    if [ "$(cat "$servers/.stamp" 2>/dev/null)" != "$gcs $lock" ]; then
        for program in go npm node; do command -v $program >/dev/null || die "$program is needed and was not found"; done
        say "setting up $servers (a few minutes)"
        rm -rf "$servers"
        mkdir -p "$servers"
        GOBIN=$servers go install "$gcs"
        cp requirements/azurite/*.json "$servers"
        npm ci --silent --no-audit --no-fund --ignore-scripts --prefix "$servers"
        printf '%s' "$gcs $lock" >"$servers/.stamp"
    fi
    ICEPUFFIN_GCS_SERVER=$servers/fake-gcs-server \
        ICEPUFFIN_ADLS_SERVER=$servers/node_modules/azurite/dist/src/blob/main.js \
        python -m pytest --numprocesses 0 --verbose \
        tests/ops/storage/test_buckets.py tests/faults/test_buckets.py tests/interop/test_other_stores.py "$@"
}

# The values of deploy/kubernetes, against Dagster's chart in a folder; needs helm.
charts() {
    tool charts requirements/kubernetes-check.txt
    PYTHONPATH=$(echo "$tool"/lib/python*/site-packages) python deploy/kubernetes/check.py "$@"
}

# The lowest versions of all packages with the oldest Iceberg, then the newest Iceberg with the project's own packages.
# shellcheck disable=SC2086  # both are lists of paths
ranges() {
    tool lowest requirements/lowest.txt
    "$tool/bin/python" -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
    say "the lowest versions"
    PATH=$tool/bin:$PATH NUMBA_CACHE_DIR=$tool/kernels ICEPUFFIN_ICEBERG=1.11.0 \
        python -m pytest --numprocesses 2 --dist loadfile $both_ends $without_spark "$@"
    say "the newest Iceberg"
    ICEPUFFIN_ICEBERG=1.12.0 python -m pytest --numprocesses 2 --dist loadfile $both_ends "$@"
}

# The locked packages, and tests without a JVM or a server, with each newer Python that is on the PATH or one of pyenv's.
pythons() {
    for version in 3.12 3.13 3.14; do
        base=
        for candidate in "python$version" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python; do
            if command -v "$candidate" >/dev/null && "$candidate" -c 'import ensurepip' 2>/dev/null; then base=$candidate; fi
        done
        [ "$base" ] || { say "there is no Python $version here"; continue; }
        # datasketches has no wheel for Python 3.14; some tests compare ours with it
        lock=$PWD/.cache/python-$version.txt
        awk -v version="$version" '/^[a-z]/ { kept = version != "3.14" || !/^datasketches/ } kept' requirements/lock.txt >"$lock"
        tool "python-$version" "$lock"
        "$tool/bin/python" -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
        say "$("$tool/bin/python" --version)"
        without=
        [ "$version" != 3.14 ] || without="--ignore-glob=tests/puffin/test_*_blob.py"
        PATH=$tool/bin:$PATH NUMBA_CACHE_DIR=$tool/kernels python -m pytest --numprocesses 2 --dist loadfile $without \
            -m "not jvm and not services and not trino and not browser" $without_spark tests/ann_kernels tests/assets "$@"
    done
}

# Tests with Spark, and those without it that depend on packages most
both_ends="tests/interop/test_binding_spark.py tests/interop/test_theta_spark.py tests/interop/test_spark_changes.py
    tests/interop/test_equality_deletes.py tests/interop/test_v3_rest.py tests/ops/spark"
without_spark="tests/puffin tests/conformance tests/ops/theta tests/ops/catalog tests/ops/sql tests/test_front_door.py
    tests/ops/index/test_histories.py tests/ops/search/test_reader.py tests/orchestration/test_definitions.py
    tests/orchestration/test_sensor.py tests/orchestration/test_component.py tests/orchestration/test_build_defs.py
    tests/orchestration/test_merged_definitions.py tests/orchestration/test_run_tags.py
    tests/orchestration/test_schedules.py"

command=${1:-help}
[ $# = 0 ] || shift
case $command in
    setup) setup ;;
    demo) packages demo; kernels; say "demo: about a minute"; python -m examples.demo "${1:-demo-data}" ;;
    lint) packages all; lint ;;
    quick) setup; unset PYTHONDONTWRITEBYTECODE; python -m tests.quick "$@" ;;
    test | check) packages all; check "$@" ;;
    durations) setup; durations "$@" ;;
    classes) packages all; classes ;;
    mutants) setup; mutants "$@" ;;
    nightly) setup; nightly "$@" ;;
    flaky) setup; python -m tests.flaky "$@" ;;
    clauses) setup; python -m tests.clauses "$@" ;;
    fuzz) setup; fuzz "$@" ;;
    catalogs) setup; catalogs "$@" ;;
    crowd) setup; crowd "$@" ;;
    stores) setup; stores "$@" ;;
    trino | presto) setup; . tests/services/engines.sh; "$command" "$@" ;;
    planners) setup; . tests/services/engines.sh; trino_server; python -m benchmarks.planners "$@" ;;
    charts) packages all; charts "$@" ;;
    ranges) setup; ranges "$@" ;;
    resolve) setup; python -m tests.resolve ;;
    engines) setup; engines "$@" ;;
    pythons) packages all; pythons "$@" ;;
    bench) setup; python -m benchmarks "$@" ;;
    help) sed -n '2,3s/^# //p' "$0" ;;
    *) die "there is no command $command: sh deploy/bootstrap.sh help lists all" ;;
esac
