# Engines for tests and benchmarks, by Maven into .cache: a part of deploy/bootstrap.sh.

# Trino, and its tests of sketches and of tables with indexes.
trino() {
    trino_server
    python -m pytest --numprocesses 0 --verbose --durations 3 tests/interop/test_theta_trino.py \
        tests/interop/test_beside_trino.py "$@"
}

# Sets TRINO_HOME and TRINO_JAVA_HOME. Its two archives come by Maven, 540 MB.
trino_server() {
    release=476
    if [ -z "${TRINO_HOME:-}" ]; then
        export TRINO_HOME="$PWD/.cache/trino-$release"
        [ -e "$TRINO_HOME/.complete" ] || fetch_trino
    fi
    for java in /usr/lib/jvm/*; do  # 24 is the oldest version that this release starts with
        version=$(sed -n 's/^JAVA_VERSION="\([0-9]*\).*/\1/p' "$java/release" 2>/dev/null || true)
        [ "${version:-0}" -lt 24 ] || TRINO_JAVA_HOME=${TRINO_JAVA_HOME:-$java}
    done
    [ "${TRINO_JAVA_HOME:-}" ] || die "Trino $release needs a JDK of version 24 or newer: set TRINO_JAVA_HOME to its folder"
    export TRINO_JAVA_HOME
}

fetch_trino() {
    command -v mvn >/dev/null || die "fetching Trino needs Maven (apt-get install maven), or TRINO_HOME set to a copy"
    say "fetching Trino $release into $TRINO_HOME"
    rm -rf "$TRINO_HOME"
    mkdir -p "$TRINO_HOME/plugins"
    for artifact in "trino-server-core:$release:tar.gz" "trino-iceberg:$release:zip"; do
        mvn -q dependency:copy -Dartifact="io.trino:$artifact" -DoutputDirectory="$TRINO_HOME"
    done
    tar -xzf "$TRINO_HOME/trino-server-core-$release.tar.gz" -C "$TRINO_HOME"
    "$python" -m zipfile -e "$TRINO_HOME/trino-iceberg-$release.zip" "$TRINO_HOME/plugins"
    mv "$TRINO_HOME/plugins/trino-iceberg-$release" "$TRINO_HOME/plugins/iceberg"
    rm "$TRINO_HOME"/*.gz "$TRINO_HOME"/*.zip
    touch "$TRINO_HOME/.complete"
}

# Presto, and its tests of statistics. The newest release that Maven has is older than Java 17, whose classes its ASM does
# not know: a later one takes its place. The archive is 2 GB, of which 470 MB stay.
presto() {
    release=0.287
    if [ -z "${PRESTO_HOME:-}" ]; then
        PRESTO_HOME="$PWD/.cache/presto-$release"
        [ -e "$PRESTO_HOME/.complete" ] || fetch_presto
    fi
    export PRESTO_HOME
    python -m pytest --numprocesses 0 --verbose --durations 3 tests/interop/test_presto_server.py "$@"
}

fetch_presto() {
    command -v mvn >/dev/null || die "fetching Presto needs Maven (apt-get install maven), or PRESTO_HOME set to a copy"
    say "fetching Presto $release into $PRESTO_HOME"
    rm -rf "$PRESTO_HOME"
    mkdir -p "$PRESTO_HOME"
    mvn -q dependency:copy -Dartifact="com.facebook.presto:presto-server:$release:tar.gz" -DoutputDirectory="$PRESTO_HOME"
    tar -xzf "$PRESTO_HOME/presto-server-$release.tar.gz" --strip-components 1 -C "$PRESTO_HOME" \
        "presto-server-$release/lib" "presto-server-$release/plugin/iceberg"
    for part in asm asm-tree asm-util asm-analysis; do
        for folder in lib plugin/iceberg; do
            rm "$PRESTO_HOME/$folder/$part-9.0.jar"
            mvn -q dependency:copy -Dartifact="org.ow2.asm:$part:9.7.1" -DoutputDirectory="$PRESTO_HOME/$folder"
        done
    done
    rm "$PRESTO_HOME"/*.gz
    touch "$PRESTO_HOME/.complete"
}
