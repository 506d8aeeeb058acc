import pytest

from icepuffin.ann_kernels.compilation import JIT, inner_kernel, kernel


@inner_kernel
def one_more(number: int) -> int:
    return number + 1


@kernel
def two_more(number: int) -> int:
    return one_more(number) + 1


@pytest.mark.skipif(not JIT, reason="nothing is compiled")
def test_a_kernel_without_an_entry_from_python_refuses_to_be_called() -> None:
    """Numba jumped to address 0."""
    with pytest.raises(TypeError, match="one_more has no entry from Python"):
        one_more(1)
    assert two_more(1) == 3
    with pytest.raises(TypeError, match="one_more has no entry from Python"):
        one_more(1)
