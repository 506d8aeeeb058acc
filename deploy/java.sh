# Part of deploy/bootstrap.sh: a Java that Spark 4.1 runs on. Sets JAVA_HOME and puts it on PATH.
# Tried in this order: JAVA_HOME, PATH, /usr/lib/jvm; apt as root; Debian's own packages unpacked into the user's cache.

# Spark 4.1 wants Java 17 or 21; its Hadoop no longer starts on 24 and later.
java_fits() {
    [ -x "$1/bin/java" ] || return 1
    major=$("$1/bin/java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p')
    [ "${major:-0}" -ge 17 ] && [ "$major" -lt 24 ]
}

installed_java() {
    on_path=$(command -v java || true)
    [ -z "$on_path" ] || on_path=$(dirname "$(dirname "$(readlink -f "$on_path")")")
    for home in "${JAVA_HOME:-}" "$on_path" /usr/lib/jvm/* "$cache"/jre/usr/lib/jvm/java-17-*; do
        if [ -n "$home" ] && java_fits "$home"; then
            JAVA_HOME=$home
            PATH=$JAVA_HOME/bin:$PATH
            export JAVA_HOME PATH
            return
        fi
    done
    return 1
}

# Without root: unpacked packages, with their absolute links and certificates put right.
unpack_java() {
    say "unpacking Debian's openjdk-17-jre-headless into $cache/jre"
    apt_unpack "$cache/jre.new" openjdk-17-jre-headless || return 1
    find "$cache/jre.new" -type l | while read -r link; do
        target=$(readlink "$link")
        case $target in /*) ln -sfn "$cache/jre$target" "$link" ;; esac
    done
    mkdir -p "$cache/jre.new/etc/ssl/certs/java"
    "$1" deploy/trust_store.py "$cache/jre.new/etc/ssl/certs/java/cacerts" || return 1
    rm -rf "$cache/jre"
    mv "$cache/jre.new" "$cache/jre"
}

# find_java PYTHON
find_java() {
    installed_java && return
    apt_install openjdk-17-jre-headless && installed_java && return
    unpack_java "$1" && installed_java && return
    die "Java 17 is needed and was not found; as root: apt-get install openjdk-17-jre-headless, or set JAVA_HOME"
}
