"""How kernels are compiled: without the GIL, cached on disk, with stated rules for floats.

Numba ignores the annotations of a kernel; they are for readers and for the type checker.

Arrays that belong together are passed as a NamedTuple. Kernels take arrays out of their tuples before a loop: numba
counts references at each access.

What is compiled is paid for at each installation, so it is kept small. Numba compiles a kernel anew for each set of
argument types: callers cast indices to one type, and pass `np.int64(0)` for 0, whose type is that constant. Each kernel
is optimised and made machine code by itself and again in all that call it: what few kernels call, and what is small, is
an `inline_kernel`. Assigning an array to a part of another compiles the message for shapes that differ: a loop does
not.
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
    compiled: Any = numba_jit(nogil=True, no_cfunc_wrapper=True, **options)(function)
    if JIT:
        compiled._cache = kernel_cache(function)  # noqa: SLF001  numba's cache=True sets one of its own
    return compiled  # type: ignore[no-any-return]


def _inner(function: FunctionT, **options: Any) -> FunctionT:
    """Compile a function without an entry from Python, and refuse calls: numba would jump to address 0."""
    compiled: Any = _compiled(function, no_cpython_wrapper=True, **options)
    if JIT:

        def refuse(*arguments: Any, **named: Any) -> None:
            raise TypeError(f"{function.__qualname__} has no entry from Python: kernels alone call it")

        compiled._insert = lambda *entry: None  # noqa: SLF001  calls look for an entry here
        compiled._compile_for_args = refuse  # noqa: SLF001  and are passed on to this where there is none
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


def inner_kernel(function: FunctionT) -> FunctionT:
    """Compile a `kernel` that kernels alone call: it has no entry from Python, which would take as long to compile."""
    return _inner(function)


def fast_inner_kernel(function: FunctionT) -> FunctionT:
    """Compile a `fast_kernel` that kernels alone call."""
    return _inner(function, fastmath=FAST)


def strict_inner_kernel(function: FunctionT) -> FunctionT:
    """Compile a `strict_kernel` that kernels alone call."""
    return _inner(function, fastmath=False)


def inline_kernel(function: FunctionT) -> FunctionT:
    """Compile a function as a part of each kernel that calls it, by that kernel's rules for floats."""
    return _compiled(function, inline="always")


def compiled_form(function: Callable[..., Any]) -> Callable[[FunctionT], FunctionT]:
    """Decorate what chooses, by the types of the arguments, the code that compiled calls of `function` run.

    LLVM makes the code a part of each kernel that calls `function`: numba (0.68) would compile it twice, and drop some
    writes to arrays. Without the JIT, `function` itself runs.
    """

    def register(choose: FunctionT) -> FunctionT:
        if JIT:
            options = {"forceinline": True, "no_cfunc_wrapper": True}
            numba_overload(function, options, fastmath=FAST, strict=False)(choose)  # annotations may differ

        return choose

    return register
