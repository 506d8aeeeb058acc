"""How kernels are compiled: without the GIL, cached on disk, with stated rules for floats.

Numba ignores the annotations of a kernel; they are for readers and for the type checker.

Arrays that belong together are passed as a NamedTuple. A kernel that writes to one of them takes it by its name from an
argument (`adjacency.degrees`), never from a tuple that the kernel itself made or unpacked: when numba (0.68) inlines
overloads, it drops writes to arrays that it does not know to be an argument's and that are not read later. Kernels
take arrays out of their tuples before a loop: numba counts references at each access.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from numba import config, njit
from numba.extending import overload

from icepuffin.ann_kernels.compiled_code import kernel_cache, observe_compilations

observe_compilations()  # all kernels of the package import this module

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
numba_jit: Any = njit
numba_overload: Any = overload

JIT: bool = not getattr(config, "DISABLE_JIT", 0)
"""Whether kernels are compiled; with NUMBA_DISABLE_JIT=1 they run as plain Python"""
FAST = {"reassoc", "contract", "arcp", "nsz"}
"""Fast-math flags: sums may be reordered and fused. Never nnan or ninf: user data is checked but not trusted"""


def _compiled(function: FunctionT, **options: Any) -> FunctionT:
    compiled: Any = numba_jit(nogil=True, **options)(function)
    if JIT:
        compiled._cache = kernel_cache(function)  # noqa: SLF001  numba's cache=True sets one of its own
    return compiled  # type: ignore[no-any-return]


def kernel(function: FunctionT) -> FunctionT:
    """Compile a function. Its float arithmetic follows the caller's flags where numba inlines it."""
    return _compiled(function)


def fast_kernel(function: FunctionT) -> FunctionT:
    """Compile a function whose float sums may be reordered and fused.

    Numba inlines before it generates code, so the flags of the outermost kernel count.
    """
    return _compiled(function, fastmath=FAST)


def strict_kernel(function: FunctionT) -> FunctionT:
    """Compile a function whose float arithmetic happens in the order that is written, whoever calls it."""
    return _compiled(function, fastmath=False)


def numpy_kernel(function: FunctionT) -> FunctionT:
    """Compile a function in which division by zero gives inf or NaN, as in NumPy: no check keeps loops from SIMD."""
    return _compiled(function, error_model="numpy")


def inline_kernel(function: FunctionT) -> FunctionT:
    """Compile a function as a part of each kernel that calls it, by that kernel's rules for floats."""
    return _compiled(function, inline="always")


def compiled_form(function: Callable[..., Any]) -> Callable[[FunctionT], FunctionT]:
    """Decorate what chooses, by the types of the arguments, the code that compiled calls of `function` run.

    The code becomes a part of each kernel that calls `function`. Without the JIT, `function` itself runs.
    """

    def register(choose: FunctionT) -> FunctionT:
        if JIT:
            numba_overload(function, fastmath=FAST, inline="always", strict=False)(choose)  # annotations may differ
        return choose

    return register
