#!/bin/sh
# Sets up everything that a command needs, then runs it: sh deploy/bootstrap.sh setup | demo [DIR] | test | check | bench
# Needs Python 3.11. Makes .venv from requirements/lock.txt, finds or installs Java 17. Quick when nothing changed.
set -eu
cd "$(dirname "$0")/.."
venv=.venv
python=$venv/bin/python

say() { printf '==> %s\n' "$*"; }
die() { printf 'icepuffin: %s\n' "$*" >&2; exit 1; }

# Runs a command as root where that needs no password; fails otherwise.
as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"
    elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then sudo -n "$@"
    else return 1
    fi
}

apt_install() {
    command -v apt-get >/dev/null || return 1
    say "installing $*"
    as_root sh -c "export DEBIAN_FRONTEND=noninteractive; apt-get -q update && apt-get -q install -y --no-install-recommends $*" >&2
}

find_python() {
    for candidate in python3.11 python3 python; do
        if command -v "$candidate" >/dev/null &&
            "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    die "Python 3.11 is needed and was not found; install it, for example: apt-get install python3.11 python3-venv"
}

make_venv() {
    base=$(find_python)
    if ! "$base" -m venv "$venv" 2>/dev/null; then
        rm -rf "$venv"
        apt_install python3-venv || die "Python's venv module is incomplete; as root: apt-get install python3-venv"
        "$base" -m venv "$venv" || die "no virtual environment could be made with $base"
    fi
}

java_is_new_enough() {
    [ -x "$1/bin/java" ] || return 1
    major=$("$1/bin/java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p')
    [ "${major:-0}" -ge 17 ]
}

# Sets JAVA_HOME to a Java of at least 17, from JAVA_HOME, PATH or /usr/lib/jvm, or installs one.
find_java() {
    on_path=$(command -v java || true)
    [ -z "$on_path" ] || on_path=$(dirname "$(dirname "$(readlink -f "$on_path")")")
    for home in "${JAVA_HOME:-}" "$on_path" /usr/lib/jvm/*; do
        if [ -n "$home" ] && java_is_new_enough "$home"; then
            JAVA_HOME=$home
            export JAVA_HOME
            return
        fi
    done
    [ -z "${tried_java:-}" ] && tried_java=1 && apt_install openjdk-17-jre-headless && find_java && return
    die "Java 17 or newer is needed and was not found; as root: apt-get install openjdk-17-jre-headless, or set JAVA_HOME"
}

setup() {
    stamp=$(cat requirements/lock.txt pyproject.toml | cksum)
    if [ ! -x "$python" ] || [ "$(cat $venv/.stamp 2>/dev/null)" != "$stamp" ]; then
        say "setting up $venv (a few minutes the first time)"
        [ -x "$python" ] || make_venv
        "$python" -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/lock.txt
        "$python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
        say "compiling kernels"
        "$python" -m ann_kernels.warm
        printf '%s' "$stamp" >"$venv/.stamp"
    fi
    find_java
    PATH=$PWD/$venv/bin:$PATH
    export PATH
}

check() {
    say "lint, types, import rules"
    ruff check .
    ruff format --check .
    mypy
    lint-imports
    say "tests"
    python -m pytest "$@"
}

command=${1:-help}
[ $# = 0 ] || shift
case $command in
    setup) setup ;;
    demo) setup; say "demo"; icepuffin demo --dir "${1:-demo-data}" ;;
    test | check) setup; check "$@" ;;
    bench) setup; python -m benchmarks "$@" ;;
    *) sed -n '2,3s/^# //p' "$0" ;;
esac
