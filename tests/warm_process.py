"""Runs of tests in forks of one process that has collected them: `python -m tests.warm_process MODULES TESTS...`

For `tests/mutants.py`, which changes one of the modules (a,b,c) between two runs. Each line of standard input is a time
limit in seconds, and starts a run; the first is of the modules as they are. The answer is a line of JSON: {"passed":
..., "seconds": ...}, with "ended" where the run crashed or took too long. What tests print goes to `tests.log`.

Where functions have changed, a fork has their new code put in place, and runs the tests that call them. Where anything
else has changed, a fork imports our modules again, and runs all tests, those first that call the module. Of either,
those come first that failed lately, then the short ones. A test that takes far longer than at first ends its fork.

With `ICEPUFFIN_SHORT_TESTS=1` long tests, of which a commit runs some, are left out.
"""

import ast
import builtins
import contextlib
import gc
import importlib
import inspect
import json
import os
import select
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

from tests.durations import recorded

LOG = "tests.log"
_LEAVES = ("icepuffin.ann_kernels", "icepuffin.puffin")
"""Packages that import no other package of ours: they stay imported, but for the one that is changed"""
_CALLS = "_calls_of_the_changed_module"
"""Name of the built-in set of the functions that were called, in the first run"""
SHORT_TESTS = "ICEPUFFIN_SHORT_TESTS"
"""Variable that leaves out the tests that are long by `tests/durations.json`"""
_PATIENCE = 30.0
"""Seconds that any test may take, beside five times those that it took at first"""
_Functions = dict[str, list[FunctionType]]
"""Functions that exist, by their qualified names"""


@dataclass(frozen=True)
class _Module:
    """A module that may be changed, as it was at first."""

    name: str
    file: Path
    source: str
    functions: _Functions
    is_compiled: bool
    """Whether it has kernels, into which no code can be put"""

    @classmethod
    def of(cls, name: str) -> "_Module":
        loaded = importlib.import_module(name)
        file = Path(str(loaded.__file__))
        is_compiled = any(hasattr(value, "py_func") for value in vars(loaded).values())
        return cls(name, file, file.read_text(), _functions(str(file)), is_compiled)

    def put(self, codes: dict[str, CodeType]) -> None:
        """Give functions other code."""
        for name, code in codes.items():
            for function in self.functions.get(name, ()):
                function.__code__ = code


class WarmTests:
    """A plugin of pytest: in place of one run of the collected tests, many, each in a fork."""

    def __init__(self, modules: list[str], arguments: list[str], answers: Any) -> None:
        self._names = modules
        self._arguments = arguments
        self._answers = answers
        self._calls: dict[str, list[str]] = {}
        """Functions of the modules that each test calls, as `module:name`, by the id of the test"""
        self._seconds: dict[str, float] = {}
        """Time that each test took, by its id"""
        self._failures: list[str] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted(_chosen(items), key=lambda test: test.nodeid)  # a fixed order

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        gc.unfreeze()  # what is frozen is not among the objects that are looked through
        modules = [_Module.of(name) for name in self._names]
        for line in sys.stdin:
            begun = time.monotonic()
            answer = _in_fork(self._work(session.items, modules), float(line)) or {"passed": False, "ended": True}
            self._calls = answer.pop("calls", self._calls)
            self._seconds = answer.pop("durations", self._seconds)
            if test := answer.pop("failed", ""):
                self._failures = [test, *(each for each in self._failures if each != test)]
            self._answers.write(json.dumps({**answer, "seconds": time.monotonic() - begun}) + "\n")
            self._answers.flush()
        return True

    def _work(self, tests: list[pytest.Item], modules: list[_Module]) -> Callable[[], dict[str, Any]]:
        if not self._calls:
            return self._recorded(tests, modules)
        module, changed = next(
            ((module, text) for module in modules if (text := module.file.read_text()) != module.source),
            (modules[0], modules[0].source),
        )
        names = None if module.is_compiled else _changed_functions(module.source, changed, module.functions)
        return self._anew(module) if names is None else self._in_place(tests, module, changed, names)

    def _recorded(self, tests: list[pytest.Item], modules: list[_Module]) -> Callable[[], dict[str, Any]]:
        """All tests, with a record of the functions that each calls, or that a fixture calls for a test of its file."""

        def run() -> dict[str, Any]:
            record: set[str] = set()
            setattr(builtins, _CALLS, record)
            for module in modules:
                if not module.is_compiled:
                    module.put(_recording(module))
            calls: dict[str, set[str]] = {}
            durations: dict[str, float] = {}
            of_fixtures: dict[str, set[str]] = {}
            plugin = _FirstFailure(lambda test: of_fixtures.setdefault(_file(test), set()).update(record))
            for test, following in _pairs(tests):
                record.clear()
                begun = time.monotonic()
                plugin.run(test, following)
                calls[test.nodeid] = set(record)
                durations[test.nodeid] = time.monotonic() - begun
                if plugin.failed:
                    return {"passed": False}
            by_test = {test: sorted(called | of_fixtures.get(_file(test), set())) for test, called in calls.items()}
            return {"passed": True, "calls": by_test, "durations": durations}

        return run

    def _in_place(
        self, tests: list[pytest.Item], module: _Module, changed: str, names: set[str]
    ) -> Callable[[], dict[str, Any]]:
        called = {f"{module.name}:{name}" for name in names}
        chosen = [test for test in tests if called.intersection(self._calls[test.nodeid])]
        chosen.sort(key=self._place)

        def run() -> dict[str, Any]:
            code = _codes(_compiled(changed, str(module.file)))
            module.put({name: code[name] for name in names})
            plugin = _FirstFailure(seconds=self._seconds)
            for test, following in _pairs(chosen):
                plugin.run(test, following)
                if plugin.failed:
                    return {"passed": False, "failed": plugin.failed}
            return {"passed": True, "tests": len(chosen)}

        return run

    def _place(self, test: pytest.Item) -> tuple[int, float]:
        """Where a test comes: those that failed lately, then the short ones."""
        failures = self._failures
        place = failures.index(test.nodeid) if test.nodeid in failures else len(failures)
        return place, self._seconds.get(test.nodeid, 0.0)

    def _anew(self, module: _Module) -> Callable[[], dict[str, Any]]:
        def calls(test: pytest.Item) -> bool:
            return any(name.startswith(f"{module.name}:") for name in self._calls.get(test.nodeid, ()))

        order = _Order(lambda test: (not calls(test), *self._place(test)))
        kept = tuple(leaf for leaf in _LEAVES if not module.name.startswith(f"{leaf}."))

        def run() -> dict[str, Any]:
            for name in [name for name in sys.modules if name.partition(".")[0] in {"icepuffin", "tests"}]:
                if not name.startswith(kept):
                    del sys.modules[name]
            plugin = _FirstFailure(seconds=self._seconds)
            passed = pytest.main(self._arguments, plugins=[order, plugin]) == pytest.ExitCode.OK
            return {"passed": passed, "failed": plugin.failed}

        return run


class _Order:
    """A plugin of pytest that puts tests in an order."""

    def __init__(self, place: Callable[[pytest.Item], tuple[object, ...]]) -> None:
        self._place = place

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted(_chosen(items), key=self._place)


class _FirstFailure:
    """A plugin of pytest that notes which test fails first, and ends the process at one that takes too long.

    Args:
        after_setup: is called with the id of a test that has been set up
        seconds: what each test took at first; none where that is measured
    """

    def __init__(
        self, after_setup: Callable[[str], object] = lambda _: None, seconds: Mapping[str, float] | None = None
    ) -> None:
        self._after_setup = after_setup
        self._seconds = seconds
        self.failed = ""

    def run(self, test: pytest.Item, following: pytest.Item | None) -> None:
        manager = test.config.pluginmanager
        if not manager.is_registered(self):
            manager.register(self)
        test.config.hook.pytest_runtest_protocol(item=test, nextitem=following)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        if self._seconds is not None:
            signal.setitimer(signal.ITIMER_REAL, _PATIENCE + 5 * self._seconds.get(nodeid, 0.0))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "setup":
            self._after_setup(report.nodeid)
        if report.failed and not self.failed:
            self.failed = report.nodeid


def _chosen(tests: list[pytest.Item]) -> list[pytest.Item]:
    if not os.environ.get(SHORT_TESTS):
        return tests
    costs = recorded()
    return [test for test in tests if test.nodeid.partition("[")[0] not in costs]


def _file(test: str) -> str:
    """The file of a test's id."""
    return test.partition("::")[0]


def _pairs(tests: list[pytest.Item]) -> Iterator[tuple[pytest.Item, pytest.Item | None]]:
    following: list[pytest.Item | None] = [*tests, None]
    return zip(tests, following[1:], strict=True)  # of no tests, no pair


def _functions(file: str) -> _Functions:
    """The functions of a file that exist."""
    functions: _Functions = {}
    for function in gc.get_objects():
        if isinstance(function, FunctionType) and function.__code__.co_filename == file:
            functions.setdefault(function.__code__.co_qualname, []).append(function)
    return functions


def _changed_functions(before: str, after: str, functions: _Functions) -> set[str] | None:
    """Names of the functions whose code differs; None where code outside of functions does."""
    old, new = (_compiled(source, "") for source in (before, after))
    if _outside(old) != _outside(new):
        return None
    old_codes, new_codes = _codes(old), _codes(new)
    names = {name for name in old_codes if old_codes[name] != new_codes[name]}
    same_cells = all(old_codes[name].co_freevars == new_codes[name].co_freevars for name in names)
    return names if same_cells and names <= functions.keys() else None


def _compiled(source: str, file: str) -> CodeType:
    """A warning of the compiler, such as of `is` with a literal, is no failure of a test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        return compile(source, file, "exec")


def _is_function(code: CodeType) -> bool:
    """Whether it is the code of a named function, and not of a class or of an expression."""
    return bool(code.co_flags & inspect.CO_OPTIMIZED) and not code.co_name.startswith("<")


def _codes(code: CodeType) -> dict[str, CodeType]:
    """The functions of a module and of its classes, by their qualified names."""
    codes: dict[str, CodeType] = {}
    for inner in (constant for constant in code.co_consts if isinstance(constant, CodeType)):
        codes |= {inner.co_qualname: inner} if _is_function(inner) else _codes(inner)
    return codes


def _outside(code: CodeType) -> tuple[object, ...]:
    """What an import executes."""
    constants = [
        repr(constant) if not isinstance(constant, CodeType) else "" if _is_function(constant) else _outside(constant)
        for constant in code.co_consts
    ]
    return code.co_code, code.co_names, constants


def _recording(module: _Module) -> dict[str, CodeType]:
    """The functions of a module, each of which records its name when it is called."""
    tree = ast.parse(module.source)
    names: list[str] = []

    def visit(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef):
                name = f"{module.name}:{'.'.join([*names, child.name])}"
                (statement,) = ast.parse(f"{_CALLS}.add({name!r})").body
                child.body.insert(0, ast.increment_lineno(statement, child.lineno - 1))
            elif isinstance(child, ast.ClassDef):
                names.append(child.name)
                visit(child)
                names.pop()
            else:
                visit(child)

    visit(tree)
    return _codes(compile(ast.fix_missing_locations(tree), str(module.file), "exec"))


def _in_fork(work: Callable[[], dict[str, Any]], limit: float) -> dict[str, Any] | None:
    """What a fork gives back; None where it ended without, or had not ended at the limit."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.setsid()
        os.close(reader)
        try:
            with os.fdopen(writer, "wb") as answer:
                answer.write(json.dumps(work()).encode())
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(0)
    os.close(writer)
    content, until = b"", time.monotonic() + limit
    while select.select([reader], [], [], max(0, until - time.monotonic()))[0]:
        part = os.read(reader, 1 << 20)
        if not part:
            break
        content += part
    os.close(reader)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    try:
        return dict(json.loads(content))
    except ValueError:
        return None


def main() -> None:
    modules, *arguments = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    with Path(LOG).open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    arguments = ["-x", "-q", "-n", "0", "-s", "-p", "no:cacheprovider", *arguments]
    sys.exit(pytest.main(arguments, plugins=[WarmTests(modules.split(","), arguments, answers)]))


if __name__ == "__main__":
    main()
