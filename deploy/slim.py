"""Removes from an environment what no run of this project reads: `slim.py SITE_PACKAGES`. For the image's build alone.

Debugging symbols go too, by binutils' `strip`. A pattern that matches nothing ends it with an error: a new release of
that package put its files elsewhere, and the image would grow unnoticed.
"""

import shutil
import subprocess
import sys
from pathlib import Path

UNUSED = {
    "pyspark": (  # kept: SQL, Hive's client for catalogs, YARN, Kubernetes, Hadoop, and Connect's client in Python
        "jars/spark-connect_*.jar",  # its server
        "jars/hive-beeline-*.jar",  # a shell
        "jars/hive-jdbc-*.jar",
        "jars/spark-hive-thriftserver_*.jar",
        "jars/hive-service-rpc-*.jar",
        "jars/derby*.jar",  # a Hive metastore inside of the driver
        "jars/datanucleus-*.jar",
        "jars/connect-repl",  # a Scala shell
        "jars/rocksdbjni-*.jar",  # state of streaming queries, by a setting
        "jars/scala-compiler-*.jar",  # of the Scala shell
        "jars/spark-repl_*.jar",
        "jars/jline-*.jar",
        "jars/spark-mllib_*.jar",  # machine learning, and the linear algebra under it
        "jars/breeze*_*.jar",
        "jars/spire*_*.jar",
        "jars/cats-kernel_*.jar",
        "jars/algebra_*.jar",
        "jars/lapack-*.jar",
        "jars/arpack*.jar",
        "jars/JTransforms-*.jar",
        "jars/netty-codec-native-quic-*.jar",  # HTTP/3
        "jars/netty-*-osx-*.jar",
        "jars/netty-*-windows-*.jar",
        "data",
        "examples",
        "ml",
        "mllib",
    ),
    "pyarrow": (
        "include",
        "src",
        "tests",
        "libarrow_flight.so*",
        "_flight.*",
        "libarrow_python*.so",  # copies: the loader takes those named `.so.` and one number
        "libarrow_python*.so.*.*",
    ),
    "llvmlite": ("tests",),
    "pandas": ("tests",),
    "py4j": ("tests",),
    "numpy": ("*/tests", "f2py", "distutils", "_core/include", "_core/lib", "random/lib"),
    "numba": ("tests", "cuda/tests"),
    "sqlalchemy": ("testing",),
    "dagster_webserver": ("webapp/build/**/*.map",),  # for debuggers of browsers
}
SERVICES = {"s3", "sso", "sso-oidc", "signin", "sts"}
"""Services in botocore, of four hundred, that store files or give keys to them."""


def remove(paths: list[Path], pattern: str) -> None:
    if not paths:
        sys.exit(f"slim.py: nothing is named {pattern} any more; mend UNUSED in deploy/slim.py")
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def strip(site: Path) -> None:
    """All but those in `*.libs`: auditwheel has rewritten their headers, and strip may break them."""
    libraries = [path for path in site.rglob("*.so*") if path.is_file() and not path.is_symlink()]
    moved = [path for path in libraries if path.parent.name.endswith(".libs")]
    subprocess.run(["strip", "--strip-unneeded", *sorted(set(libraries) - set(moved))], check=True)


def main() -> None:
    site = Path(sys.argv[1])
    for package, patterns in UNUSED.items():
        for pattern in patterns:
            remove(list((site / package).glob(pattern)), f"{package}/{pattern}")
    services = [path for path in (site / "botocore" / "data").iterdir() if path.is_dir()]
    remove([path for path in services if path.name not in SERVICES], "botocore/data/*")
    strip(site)


if __name__ == "__main__":
    main()
