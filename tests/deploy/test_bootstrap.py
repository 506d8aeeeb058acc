"""The set-up's own parts: what it says where it cannot go on, and the certificates of a Java that it unpacked."""

import json
import os
import re
import shutil
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


def machine_with(folder: Path, *programs: str) -> dict[str, str]:
    """An environment whose PATH has these programs, and nothing to install others with."""
    folder.mkdir()
    for program in ("sh", "cat", "cksum", "dirname", "id", "mkdir", "readlink", "sed", *programs):
        found = shutil.which(program)
        assert found is not None, program
        (folder / program).symlink_to(found)
    return {"PATH": str(folder), "HOME": str(folder)}


def test_without_python_it_says_in_one_line_what_to_install(tmp_path: Path) -> None:
    environment = machine_with(tmp_path / "bin")
    program = ["sh", str(DEPLOY / "bootstrap.sh"), "demo"]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == (
        "icepuffin: Python 3.11 is needed and was not found; "
        "as root, on Debian 12: apt-get install python3.11 python3.11-venv\n"
    )


def test_help_needs_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", str(DEPLOY / "bootstrap.sh")],
        env=machine_with(tmp_path / "bin"),
        capture_output=True,
        text=True,
        check=True,
    )
    assert "demo [DIR]" in done.stdout


def test_a_command_that_there_is_not_is_an_error(tmp_path: Path) -> None:
    program = ["sh", str(DEPLOY / "bootstrap.sh"), "tests"]
    done = subprocess.run(program, env=machine_with(tmp_path / "bin"), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "there is no command tests" in done.stderr


@pytest.mark.jvm
def test_java_reads_the_certificates_of_the_machine(tmp_path: Path) -> None:
    keytool = shutil.which("keytool", path=f"{os.environ.get('JAVA_HOME', '')}/bin:{os.environ['PATH']}")
    assert keytool is not None
    store = tmp_path / "cacerts"
    subprocess.run([sys.executable, str(DEPLOY / "trust_store.py"), str(store)], check=True)
    listed = subprocess.run(
        [keytool, "-list", "-keystore", str(store), "-storepass", "changeit"],
        capture_output=True,
        text=True,
        check=True,
    )
    trusted = len(ssl.create_default_context().get_ca_certs())
    assert listed.stdout.count("trustedCertEntry") == trusted > 0


def run_functions(folder: Path, names: tuple[str, ...], command: str, **variables: str) -> str:
    """What a command prints that is called with these functions of the script."""
    script = (DEPLOY / "bootstrap.sh").read_text(encoding="utf-8")
    texts = []
    for name in names:
        (text,) = re.findall(rf"^{name}\(\) \{{(?:.*\}}$|\n(?s:.*?)^\}})", script, re.MULTILINE)
        texts.append(text)
    program = ["sh", "-euc", "\n".join([*texts, command])]
    done = subprocess.run(
        program, cwd=folder, env=os.environ | variables, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


@pytest.mark.parametrize(
    ("stamp", "demo", "everything"),
    [("123 9 all", True, True), ("123 9 demo", True, False), ("124 9 all", False, False), ("", False, False)],
)
def test_an_environment_for_everything_serves_the_demo(
    tmp_path: Path, stamp: str, *, demo: bool, everything: bool
) -> None:
    (tmp_path / ".stamp").write_text(stamp, encoding="utf-8")
    for name, suffices in (("demo", demo), ("all", everything)):
        printed = run_functions(
            tmp_path,
            ("is_python", "has"),
            f'if has {name}; then echo yes; fi; python=none; if has {name}; then echo "without Python"; fi',
            venv=str(tmp_path),
            python=sys.executable,
            stamp="123 9",
        )
        assert printed == ("yes\n" if suffices else ""), name


def test_the_times_of_the_last_set_up_are_noted(tmp_path: Path) -> None:
    (tmp_path / ".cache").mkdir()

    def noted(*commands: str) -> dict[str, list[float]]:
        run_functions(tmp_path, ("measured",), "\n".join(commands), venv=str(tmp_path))
        lines = [line.split() for line in (tmp_path / ".setup-times").read_text(encoding="utf-8").splitlines()]
        return {stage: [float(wall), float(processor)] for stage, wall, processor in lines}

    times = noted(
        "busy() { head -c 900000000 /dev/zero | cksum; }", "measured packages busy", "measured kernels sleep 0.3"
    )
    assert list(times) == ["packages", "kernels"]
    assert times["packages"][1] > 0.1
    assert times["kernels"][0] >= 0.3
    assert times["kernels"][1] <= 0.2
    again = noted("measured packages true")
    assert list(again) == ["kernels", "packages"]
    assert again["kernels"] == times["kernels"]
    assert again["packages"][1] <= 0.2


def test_every_package_of_the_server_for_adls_has_a_checksum() -> None:
    folder = DEPLOY.parent / "requirements" / "azurite"
    version = json.loads((folder / "package.json").read_text(encoding="utf-8"))["dependencies"]["azurite"]
    packages = json.loads((folder / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    assert packages["node_modules/azurite"]["version"] == version
    assert f"| ADLS | Azurite {version}," in (DEPLOY.parent / "docs" / "compatibility.md").read_text(encoding="utf-8")
    own = packages.pop("")
    assert own["dependencies"] == {"azurite": version}
    assert all(package["integrity"].startswith("sha512-") for package in packages.values())
    assert not any("resolved" in package for package in packages.values()), "no registry is named"
