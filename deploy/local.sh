#!/bin/sh
# The deployment of compose.yaml without containers: Spark master and workers, code location, webserver, daemon.
#   sh deploy/local.sh start | stop | status [options]
# Options, with what they are without them; stop and status need --dir alone:
#   --dir DIR           pid files, logs, Dagster's home                 [local-deploy]
#   --settings FILE     [ICEPUFFIN_SETTINGS, else icepuffin.toml here]
#   --host ADDRESS      everything listens there                        [127.0.0.1]
#   --insecure          ... although whoever reaches that address can run code here: nothing of this has a log-in.
#                       To let others in, leave the host alone and put a proxy with a log-in before the webserver
#   --name NAME         name that browsers have for that proxy          [none: localhost alone]
#   --port N            webserver                                       [3000]
#   --code-port N       code location                                   [4000]
#   --spark-port N      Spark master; --spark-ui-port N its page        [7077, 8080]
#   --workers N         Spark workers of --cores N and --memory SIZE    [2, 1, 1g]
#   --no-spark          none of Spark: runs use what the settings say
# Postgres where DAGSTER_POSTGRES_HOST, _PORT, _USER, _PASSWORD and _DB are set, else SQLite. The environment is that of
# `sh deploy/bootstrap.sh setup`, or the one of PYTHON=/path/to/python.
set -eu
here=$PWD
cd "$(dirname "$0")/.."
cache=${ICEPUFFIN_CACHE:-$HOME/.cache/icepuffin}

say() { printf '%s\n' "$*"; }
die() { printf 'icepuffin: %s\n' "$*" >&2; exit 1; }
absolute() { case $1 in /*) printf '%s' "$1" ;; *) printf '%s/%s' "$here" "$1" ;; esac; }

. deploy/java.sh

command=${1:-help}
[ $# = 0 ] || shift
dir=local-deploy settings=${ICEPUFFIN_SETTINGS:-icepuffin.toml} host=127.0.0.1
port=3000 code_port=4000 spark_port=7077 spark_ui_port=8080 workers=2 cores=1 memory=1g insecure=no
while [ $# -gt 0 ]; do
    case $1 in
        --no-spark) workers=0; shift; continue ;;
        --insecure) insecure=yes; shift; continue ;;
        --dir | --settings | --host | --name | --port | --code-port | --spark-port | --spark-ui-port | --workers | --cores | --memory) ;;
        *) die "$1 is no option; sh deploy/local.sh help lists them" ;;
    esac
    [ $# -gt 1 ] || die "$1 needs a value"
    case $1 in
        --dir) dir=$2 ;;
        --settings) settings=$2 ;;
        --host) host=$2 ;;
        --name) export ICEPUFFIN_UI_NAME="$2" ;;
        --port) port=$2 ;;
        --code-port) code_port=$2 ;;
        --spark-port) spark_port=$2 ;;
        --spark-ui-port) spark_ui_port=$2 ;;
        --workers) workers=$2 ;;
        --cores) cores=$2 ;;
        --memory) memory=$2 ;;
    esac
    shift 2
done
dir=$(absolute "$dir")
settings=$(absolute "$settings")

# A process is identified by its id and start time: an id alone may be another process's by now.
began() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d ' ' -f 20; }

running() {
    pid='' since=''
    [ -f "$dir/run/$1.pid" ] && read -r pid since <"$dir/run/$1.pid" || return 1
    [ -n "$since" ] && [ "$(began "$pid")" = "$since" ]
}

services() { for file in "$dir"/run/*.pid; do [ -e "$file" ] && basename "$file" .pid; done; }

# launch NAME COMMAND...: in a session of its own; a shell's background processes ignore SIGINT, and Dagster's SIGTERM too.
launch() {
    name=$1
    shift
    if running "$name"; then return; fi
    setsid env --default-signal=INT,QUIT,TERM "$@" >>"$dir/logs/$name.log" 2>&1 </dev/null 9>&- &
    printf '%s %s\n' "$!" "$(began $!)" >"$dir/run/$name.pid"
}

# await WHAT COMMAND...: until the command succeeds, as long as everything runs.
await() {
    what=$1 tries=0
    shift
    until "$@" >/dev/null 2>&1; do
        tries=$((tries + 1))
        [ $tries -lt 240 ] || die "$what did not start in a minute; its log is in $dir/logs"
        for name in $(services); do
            running "$name" || die "$name ended: $(tail -n 3 "$dir/logs/$name.log"); the whole log is $dir/logs/$name.log"
        done
        sleep 0.25
    done
}

listens() { "$python" -c 'import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 1)' "$host" "$1"; }
answers() { "$python" -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=2)' "$1"; }
has_workers() {
    "$python" -c 'import json, sys, urllib.request; a, n = sys.argv[1:]
sys.exit(json.load(urllib.request.urlopen(a, timeout=2))["aliveworkers"] < int(n))' "http://$host:$spark_ui_port/json/" "$workers"
}
free() { running "$1" || ! listens "$2" 2>/dev/null || die "port $2 is taken; choose another one with $3"; }

find_environment() {
    python=${PYTHON:-$PWD/.venv/bin/python}
    [ -x "$python" ] || die "$python is missing; run: sh deploy/bootstrap.sh setup"
    bin=$(dirname "$python")
    ICEPUFFIN_SETTINGS=$settings
    export ICEPUFFIN_SETTINGS
    SPARK_HOME=$("$python" -c '
import importlib.util, sys
from icepuffin.orchestration.settings import SettingsError, load
try:
    load()
except SettingsError as error:
    sys.exit(f"icepuffin: {error}")
print(importlib.util.find_spec("pyspark").submodule_search_locations[0])') || exit 1
    export SPARK_HOME
}

prepare_home() {
    DAGSTER_HOME=$dir/dagster_home
    export DAGSTER_HOME
    mkdir -p "$DAGSTER_HOME"
    [ ! -e "$DAGSTER_HOME/dagster.yaml" ] || return 0
    if [ -n "${DAGSTER_POSTGRES_HOST:-}" ]; then cp deploy/dagster.yaml "$DAGSTER_HOME/"
    else sed '/^storage:/,/^$/d' deploy/dagster.yaml >"$DAGSTER_HOME/dagster.yaml"
    fi
}

start_spark() {
    installed_java || die "Java 17 was not found; run: sh deploy/bootstrap.sh setup, or set JAVA_HOME"
    free spark-master "$spark_port" --spark-port
    free spark-master "$spark_ui_port" --spark-ui-port
    SPARK_LOCAL_IP=$host SPARK_LOCAL_HOSTNAME=$host SPARK_DAEMON_MEMORY=256m
    SPARK_DAEMON_JAVA_OPTS="-XX:+UseSerialGC -XX:TieredStopAtLevel=1 ${SPARK_DAEMON_JAVA_OPTS:-}"
    PYSPARK_PYTHON=${PYSPARK_PYTHON:-$python}
    ICEPUFFIN__SPARK__MASTER=spark://$host:$spark_port
    export SPARK_LOCAL_IP SPARK_LOCAL_HOSTNAME SPARK_DAEMON_MEMORY SPARK_DAEMON_JAVA_OPTS PYSPARK_PYTHON ICEPUFFIN__SPARK__MASTER
    launch spark-master "$SPARK_HOME/bin/spark-class" org.apache.spark.deploy.master.Master \
        --host "$host" --port "$spark_port" --webui-port "$spark_ui_port"
    await "the Spark master" answers "http://$host:$spark_ui_port/json/"
    number=0
    while [ $number -lt "$workers" ]; do
        number=$((number + 1))
        launch "spark-worker-$number" "$SPARK_HOME/bin/spark-class" org.apache.spark.deploy.worker.Worker --host "$host" \
            --cores "$cores" --memory "$memory" --webui-port 0 --work-dir "$dir/spark/worker-$number" "$ICEPUFFIN__SPARK__MASTER"
    done
}

# The code location runs what it is sent, Spark's master what is submitted, the webserver launches runs: for anybody.
require_own_host() {
    case $host in 127.* | localhost | ::1) return ;; esac
    [ $insecure = yes ] || die "--host $host lets whoever reaches it run code as $(id -un), since code location, Spark and \
webserver have no log-in. Leave it out, and put a proxy with a log-in before 127.0.0.1:$port; or say --insecure as well"
}

start() {
    require_own_host
    find_environment
    prepare_home
    mkdir -p "$dir/run" "$dir/logs"
    exec 9>"$dir/lock"
    flock 9
    free code "$code_port" --code-port
    free webserver "$port" --port
    running code || "$python" -m icepuffin.orchestration.processes >&2 || die "the Dagster instance in $DAGSTER_HOME does not open"
    if [ "$workers" != 0 ]; then start_spark; fi
    ICEPUFFIN_CODE_HOST=$host ICEPUFFIN_CODE_PORT=$code_port
    export ICEPUFFIN_CODE_HOST ICEPUFFIN_CODE_PORT
    launch code "$bin/dagster" code-server start -h "$host" -p "$code_port" -m icepuffin.orchestration.definitions
    await "the code location" listens "$code_port"
    launch webserver "$python" -P -m icepuffin.orchestration.request_guard webserver -h "$host" -p "$port" -w deploy/workspace.yaml
    launch daemon "$bin/dagster-daemon" run -w deploy/workspace.yaml
    await "the webserver" answers "http://$host:$port/server_info"
    if [ "$workers" != 0 ]; then await "$workers Spark workers" has_workers; fi
    printf '%s\n' "http://$host:$port" >"$dir/run/address"
    status
}

status() {
    [ -n "$(services)" ] || { say "nothing was started in $dir"; return 3; }
    down=0
    for name in $(services); do
        if running "$name"; then say "$name runs, process $pid, log $dir/logs/$name.log"
        else say "$name has ended, log $dir/logs/$name.log"; down=3
        fi
    done
    if [ $down = 0 ]; then say "open $(cat "$dir/run/address" 2>/dev/null)"; fi
    return $down
}

# First the daemon, so that nothing new begins; the code location takes its runs with it, Dagster tries them again.
stop() {
    for name in daemon webserver code $(services | grep '^spark-worker' || true) spark-master; do end "$name"; done
    rm -f "$dir/run/address"
}

end() {
    if running "$1"; then
        kill -TERM "$pid"
        tries=0
        while running "$1" && [ $tries -lt 120 ]; do
            tries=$((tries + 1))
            sleep 0.25
        done
        kill -KILL "-$pid" 2>/dev/null || true    # what is left of its session
        say "$1 is stopped"
    fi
    rm -f "$dir/run/$1.pid"
}

case $command in
    start | stop | status) "$command" ;;
    *) sed -n '2,16s/^# \{0,1\}//p' deploy/local.sh ;;
esac
