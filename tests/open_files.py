"""Files that this process has open: other threads of it, and what the garbage collector closes, have others."""

import contextlib
from pathlib import Path


def open_files_in(folder: Path) -> list[str]:
    """Paths of the open files of a folder; those of files without a name begin with it, too."""
    paths = list[str]()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was open for this list, or is closed meanwhile
            paths.append(str(descriptor.readlink()))
    return [path for path in paths if path.startswith(f"{folder}/")]
