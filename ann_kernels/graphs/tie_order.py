"""The order of nodes that are equally far from a node.

By their ids every node would choose the same few: all edges would lead to these, and a walk would meet no others. In
vectors of which most are equally far from one another, such as one-hot ones, that hides nearly all of them.
"""

from typing import Any

from icepuffin.ann_kernels.compilation import inline_kernel


@inline_kernel
def tie_order(node: Any, other: Any) -> Any:
    """The rank, 0 to 2^32 - 1, of `other` among the nodes that are as far from `node`: no two have the same.

    Each node has an order of its own. Products stay within int64.
    """
    mixed = (int(other) + int(node) * 0x9E3779B9) & 0xFFFFFFFF
    mixed = ((mixed ^ (mixed >> 16)) * 0x45D9F3B) & 0xFFFFFFFF
    return mixed ^ (mixed >> 13)
