"""What goes into a work folder and what is taken out of it. Out of it nothing is trusted, links least of all.

Files are taken when every program in the sandbox is dead, so nothing changes under the reader. No link is followed.
"""

from __future__ import annotations

import errno
import io
import mmap
import os
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from msgspec import Struct

from agentrl.errors import SandboxFault
from agentrl.sandbox.base import NoRoom, SandboxLimits, SandboxRequest

_BLOCK = 512


class Entry(Struct, frozen=True):
    """One regular file, folder or link, by its path in the work folder."""

    path: str
    status: os.stat_result


def pack(request: SandboxRequest) -> bytes:
    """The workspace and the request's files as one tar archive; b"" when there are none. The request's files come in
    the place of whatever is in their way.

    Raises ValueError when they do not fit the disk that the program is given (NoRoom where the workspace has filled
    it), SandboxFault for an unreadable workspace.
    """
    if not request.files and request.workspace is None:
        return b""
    size = _check_size(request)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        if request.workspace is not None:
            size += _pack_folder(archive, request.workspace, request.files, request.limits)
            if request.files and size > request.limits.disk_bytes:
                raise NoRoom(
                    f"its work folder is full: {next(iter(request.files))} does not fit on its disk of "
                    f"{request.limits.disk_bytes} bytes"
                )
        for path, content in request.files.items():
            header = tarfile.TarInfo(path)
            header.size, header.mode = len(content), 0o644
            archive.addfile(header, io.BytesIO(content))
    return buffer.getvalue()


def _on_disk(size: int) -> int:
    """What so many bytes of a file take: a file system in memory gives whole pages."""
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


def _check_size(request: SandboxRequest) -> int:
    """Bytes that the files take on the disk."""
    size = sum(_on_disk(len(content)) for content in request.files.values())
    if size > request.limits.disk_bytes or len(request.files) > request.limits.disk_files:
        raise ValueError(
            f"{len(request.files)} files of {sum(map(len, request.files.values()))} bytes together do not fit a disk "
            f"of {request.limits.disk_bytes} bytes and {request.limits.disk_files} files; raise disk_bytes or "
            "disk_files"
        )
    return size


def _pack_folder(archive: tarfile.TarFile, folder: Path, files: Mapping[str, bytes], limits: SandboxLimits) -> int:
    """Bytes that it takes on the disk."""
    if folder.is_symlink() or not folder.is_dir():
        raise SandboxFault(f"the workspace {folder} is no folder; make it before the first run")
    size = 0
    first: dict[int, str] = {}  # inode: the path that has its content; a hard link is no second file
    try:
        for entry in entries(folder):
            if _in_the_way(entry, files):
                continue
            linked = first.get(entry.status.st_ino) if stat.S_ISREG(entry.status.st_mode) else None
            size += _on_disk(entry.status.st_size) if stat.S_ISREG(entry.status.st_mode) and linked is None else 0
            if size > limits.disk_bytes:
                raise SandboxFault(
                    f"the workspace {folder} is larger than the disk of {limits.disk_bytes} bytes; raise disk_bytes"
                )
            header = tarfile.TarInfo(entry.path)
            header.mode, header.mtime = stat.S_IMODE(entry.status.st_mode) & 0o777, entry.status.st_mtime
            if stat.S_ISLNK(entry.status.st_mode):
                header.type, header.linkname = tarfile.SYMTYPE, os.readlink(folder / entry.path)
                archive.addfile(header)
            elif stat.S_ISDIR(entry.status.st_mode):
                header.type = tarfile.DIRTYPE
                archive.addfile(header)
            elif linked is not None:
                header.type, header.linkname = tarfile.LNKTYPE, linked
                archive.addfile(header)
            else:
                first[entry.status.st_ino] = entry.path
                with open(_open(folder / entry.path), "rb") as file:
                    header.size = os.fstat(file.fileno()).st_size
                    archive.addfile(header, file)
    except OSError as error:
        raise SandboxFault(f"the workspace {folder} cannot be read: {error}") from error
    return size


def _in_the_way(entry: Entry, files: Mapping[str, bytes]) -> bool:
    """Whether what is in the workspace stands where one of the request's files, or a folder of its path, has to be."""
    is_folder = stat.S_ISDIR(entry.status.st_mode)
    return any(
        path == entry.path or entry.path.startswith(f"{path}/") or (not is_folder and path.startswith(f"{entry.path}/"))
        for path in files
    )


def entries(folder: Path) -> Iterator[Entry]:
    """Regular files, folders and links below a folder, a folder before what is in it, in order of their names.

    Paths that are too long for the system (4,096 bytes), and what cannot be read, are left out.
    """
    pending = [""]
    while pending:
        below = pending.pop()
        try:
            _readable(folder / below)
            with os.scandir(folder / below) as listing:
                found = sorted(listing, key=lambda item: item.name)
        except OSError:
            continue
        folders = []
        for item in found:
            path = f"{below}/{item.name}" if below else item.name
            try:
                status = item.stat(follow_symlinks=False)
            except OSError:
                continue
            kind = stat.S_IFMT(status.st_mode)
            if kind in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
                yield Entry(path, status)
            if kind == stat.S_IFDIR:
                folders.append(path)
        pending += reversed(folders)


def collect(folder: Path, patterns: Sequence[str], limits: SandboxLimits) -> tuple[dict[str, bytes], int]:
    """The regular files that a pattern matches, and how many were left out because they are too large together."""
    files: dict[str, bytes] = {}
    size = left_out = 0
    for entry in entries(folder) if patterns else ():
        if not stat.S_ISREG(entry.status.st_mode) or not _matches(entry.path, patterns):
            continue
        size += entry.status.st_size  # of a file with holes too: it would be whole in memory
        if size > limits.disk_bytes or len(files) >= limits.disk_files:
            left_out += 1
            continue
        try:
            with open(_open(folder / entry.path), "rb") as file:
                files[_text(entry.path)] = file.read(limits.disk_bytes)
        except OSError:
            left_out += 1
    return files, left_out


def save(folder: Path, workspace: Path, limits: SandboxLimits) -> int:
    """Makes `workspace` hold what the work folder holds. Returns how many files were left out for their size.

    Raises SandboxFault when the host cannot write it; the workspace is then what it was before.
    """
    try:
        fresh = Path(tempfile.mkdtemp(prefix=f".{workspace.name}-", dir=workspace.parent))
        try:
            left_out = _copy_tree(folder, fresh, limits)
            fresh.chmod(stat.S_IMODE(workspace.stat().st_mode))
            old = Path(tempfile.mkdtemp(prefix=f".{workspace.name}-", dir=workspace.parent))
            os.rename(workspace, old)
            os.rename(fresh, workspace)
            remove(old)
            return left_out
        finally:
            remove(fresh)
    except OSError as error:
        raise SandboxFault(f"the workspace {workspace} cannot be written: {error}") from error


def _copy_tree(folder: Path, target: Path, limits: SandboxLimits) -> int:
    size = left_out = 0
    first: dict[int, Path] = {}  # inode: where its content was copied to; a hard link is no second file
    for entry in entries(folder):
        source, copy = folder / entry.path, target / entry.path
        mode = stat.S_IMODE(entry.status.st_mode) & 0o777
        try:
            if stat.S_ISDIR(entry.status.st_mode):
                copy.mkdir(mode | 0o700)
            elif stat.S_ISLNK(entry.status.st_mode):
                os.symlink(os.readlink(source), copy)
            elif entry.status.st_ino in first:
                os.link(first[entry.status.st_ino], copy)
            elif (size := size + _on_disk(entry.status.st_size)) > limits.disk_bytes:
                left_out += 1
            else:
                with open(_open(source), "rb") as read, copy.open("xb") as written:
                    shutil.copyfileobj(read, written)
                    os.fchmod(written.fileno(), mode | 0o600)
                first[entry.status.st_ino] = copy
            if not stat.S_ISLNK(entry.status.st_mode) and copy.exists():
                os.utime(copy, ns=(entry.status.st_atime_ns, entry.status.st_mtime_ns))
        except OSError as error:
            if error.errno not in (errno.ENAMETOOLONG, errno.EACCES):
                raise
            left_out += 1
    return left_out


def remove(folder: Path) -> None:
    """A folder of ours and all below it, however deep and whatever its modes; what resists is left."""

    def again(call: object, path: str, error: object) -> None:
        try:
            os.chmod(os.path.dirname(path), 0o700)
            os.unlink(path)
        except OSError:
            pass

    shutil.rmtree(folder, onerror=again)


def make_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Writes files and their folders below a folder that nobody else writes to."""
    for path, content in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def _matches(path: str, patterns: Sequence[str]) -> bool:
    return any(pattern == path or pattern == "**" or _glob(PurePosixPath(path), pattern) for pattern in patterns)


def _glob(path: PurePosixPath, pattern: str) -> bool:
    """`*` stays in its folder; a leading or inner `**` is any number of folders."""
    return _parts_match(path.parts, PurePosixPath(pattern).parts)


def _parts_match(parts: Sequence[str], patterns: Sequence[str]) -> bool:
    if not patterns:
        return not parts
    if patterns[0] == "**":
        return any(_parts_match(parts[skip:], patterns[1:]) for skip in range(len(parts) + 1))
    return bool(parts) and PurePosixPath(parts[0]).match(patterns[0]) and _parts_match(parts[1:], patterns[1:])


def _open(path: Path) -> int:
    """A regular file, never through a link as its last part; ones without read permission too."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        return os.open(path, flags)
    except PermissionError:
        os.chmod(path, 0o600)
        return os.open(path, flags)


def _readable(folder: Path) -> None:
    if not os.access(folder, os.R_OK | os.X_OK):
        os.chmod(folder, 0o700)


def _text(path: str) -> str:
    return os.fsencode(path).decode("utf-8", "replace")
