"""Where files of checkpoints are stored: a folder, or a bucket of an S3-compatible object store.

A file that was written is whole and durable when ``write`` returns; after an interrupted write it does not exist under
its name. In a folder this takes a temporary name (ending in .part), fsync, rename, and fsync of the folder, because
pyarrow never syncs; an object store shows an object only once its upload is complete.

Names are relative, with / between their parts. Errors of the system become StorageError, which names the file.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from infra.base.errors import ConfigError, NotStored, StorageError
from infra.base.faults import reach
from infra.base.files import refusal

PART = ".part"
"""Suffix of a temporary name; what a crash leaves has it."""


class StoredFile:
    """A file that is open for reading at any place."""

    def __init__(self, file: Any, where: str) -> None:
        self._file = file
        self._where = where
        with _naming(where):
            self.nbytes: int = file.size()

    def read_at(self, offset: int, nbytes: int) -> memoryview:
        """That many bytes, or fewer if the file ends."""
        with _naming(self._where):
            return memoryview(self._file.read_at(nbytes, offset))

    def close(self) -> None:
        with _naming(self._where):
            self._file.close()


class Storage:
    """Files by name below one folder or prefix."""

    def __init__(self, system: Any, root: str, is_local: bool) -> None:
        self._system = system
        self._root = root.rstrip("/")
        self._is_local = is_local

    @property
    def is_local(self) -> bool:
        """Whether it is a folder, in which listing costs next to nothing."""
        return self._is_local

    @classmethod
    def at(cls, where: str | Path) -> "Storage":
        """A folder, file://, or s3://BUCKET/PREFIX?endpoint_override=HOST:PORT&scheme=http&region=REGION.

        Credentials of S3 come from the environment.
        """
        import pyarrow.fs  # costs 70 ms, which only those who use checkpoints pay

        text = str(where)
        if "://" not in text:
            return cls(pyarrow.fs.LocalFileSystem(), str(Path(text).absolute()), True)
        one_put = f"{'&' if '?' in text else '?'}allow_delayed_open=true" if text.startswith("s3:") else ""
        try:
            system, root = pyarrow.fs.FileSystem.from_uri(text + one_put)  # of a small file; large ones go in parts
            if not root.strip("/"):
                raise ValueError("it names no bucket or folder")
        except (ValueError, OSError, NotImplementedError) as error:
            shown = urlsplit(text)
            raise ConfigError(
                f"checkpoints cannot be kept at {shown.scheme}://{shown.hostname or ''}{shown.path}: {error}; "
                "expected a "
                "folder or s3://BUCKET/PREFIX; correct checkpoints.url"
            ) from error
        return cls(system, root, isinstance(system, pyarrow.fs.LocalFileSystem))

    def where(self, name: str) -> str:
        """The full path of a file, for messages; raises StorageError for a name that leads elsewhere."""
        if any(part in ("", ".", "..") for part in name.split("/")) or "\\" in name:
            raise StorageError(
                f"{name!r} is no name of a stored file; expected a relative one, without '..'; see who wrote it"
            )
        return f"{self._root}/{name}"

    def check_plain(self, name: str) -> None:
        """Raises StorageError for a name that leads elsewhere, by '..' or by a link."""
        where = self.where(name)
        if self._is_local and Path(where).resolve() != Path(self._root).resolve().joinpath(*name.split("/")):
            raise StorageError(f"{where} is, or lies behind, a symbolic link; expected a plain file; see who made it")

    def write(self, name: str, chunks: Iterable[Any]) -> int:
        """Writes a file from bytes or contiguous arrays; durable at return. Returns its size in bytes."""
        where = self.where(name)
        with _naming(where):
            return _write_local(Path(where), chunks) if self._is_local else self._upload(where, chunks)

    def read(self, name: str) -> memoryview:
        """Reads a whole file; raises NotStored if there is none."""
        where = self.where(name)
        with _naming(where), self._system.open_input_file(where) as file:
            return memoryview(file.read_buffer())

    def open(self, name: str) -> StoredFile:
        """Opens a file for random access; it must be closed. Raises NotStored if there is none."""
        where = self.where(name)
        with _naming(where):
            return StoredFile(self._system.open_input_file(where), where)

    def names(self, prefix: str = "") -> list[str]:
        """Names of all files with this prefix, ascending; what an interrupted write left in a folder ends in .part."""
        from pyarrow.fs import FileSelector, FileType

        folder = "/".join((self._root, *prefix.split("/")[:-1]))
        with _naming(folder):
            found = self._system.get_file_info(FileSelector(folder, recursive=True, allow_not_found=True))
        names = [info.path[len(self._root) + 1 :] for info in found if info.type == FileType.File]
        return sorted(name for name in names if name.startswith(prefix))

    def size(self, name: str) -> int:
        """Size in bytes; raises NotStored if there is no such file."""
        where = self.where(name)
        with _naming(where):
            info = self._system.get_file_info(where)
            if info.size is None:
                raise FileNotFoundError(2, "No such file", where)
            return int(info.size)

    def delete(self, name: str) -> None:
        """Removes a file, and its folder with the last one in it; a missing file is not an error."""
        where = self.where(name)
        with _naming(where), suppress(FileNotFoundError):
            self._system.delete_file(where)
        if self._is_local and (folder := Path(where).parent) != Path(self._root):
            with suppress(OSError):
                folder.rmdir()

    def _upload(self, where: str, chunks: Iterable[Any]) -> int:
        stream = self._system.open_output_stream(where)
        nbytes = 0
        try:
            for chunk in chunks:
                view = memoryview(chunk).cast("B")
                stream.write(view)
                nbytes += view.nbytes
        except BaseException:
            # closing is the only way to let go of the stream, and it makes an object of what has been sent
            with suppress(OSError):
                stream.close()
            with suppress(OSError):
                self._system.delete_file(where)
            raise
        stream.close()
        return nbytes


class OverlaidStorage(Storage):
    """The files of another storage, some of which arrived another way and are read from memory."""

    def __init__(self, below: Storage) -> None:
        super().__init__(below._system, below._root, below._is_local)
        self._contents: dict[str, bytes] = {}

    def overlay(self, contents: Mapping[str, bytes]) -> None:
        """Reads exactly these files from memory from now on; they must equal what is stored, or will be."""
        self._contents = dict(contents)

    def check_plain(self, name: str) -> None:
        if name not in self._contents:
            super().check_plain(name)

    def read(self, name: str) -> memoryview:
        content = self._contents.get(name)
        return super().read(name) if content is None else memoryview(content)

    def open(self, name: str) -> StoredFile:
        import pyarrow

        content = self._contents.get(name)
        return super().open(name) if content is None else StoredFile(pyarrow.BufferReader(content), self.where(name))

    def size(self, name: str) -> int:
        content = self._contents.get(name)
        return super().size(name) if content is None else len(content)


@contextmanager
def _naming(where: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise NotStored(f"{where} does not exist; expected a stored file; restore it from a copy") from error
    except OSError as error:
        raise StorageError(refusal(error, where)) from error


def _write_local(path: Path, chunks: Iterable[Any]) -> int:
    temporary = path.with_name(f"{path.name}.{uuid4().hex}{PART}")
    nbytes = 0
    try:
        with _create(temporary) as file:
            for chunk in chunks:
                nbytes += file.write(memoryview(chunk).cast("B"))
            file.flush()
            os.fsync(file.fileno())
        reach("before_file")
        os.replace(temporary, path)  # noqa: PTH105 (tests break off here)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)
    return nbytes


def _create(path: Path) -> Any:
    _make_folder(path.parent)
    try:
        return path.open("xb")
    except FileNotFoundError:  # somebody removed the folder as empty
        _make_folder(path.parent)
        return path.open("xb")


def _make_folder(folder: Path) -> None:
    """Makes a folder, durably."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
