"""Which errors mean that memory ran out."""

import errno

import pytest

from base.errors import ConfigError, EndpointError, StorageError
from base.memory import format_memory_error, out_of_memory_message


def caused(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "MemoryError"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "Cannot allocate memory"),
        (RuntimeError("Exception from core.cpp:117:\nstd::bad_alloc\n"), "RuntimeError: std::bad_"),
        (RuntimeError("can't start new thread"), "can't start new thread"),
        (ImportError("libx.so: failed to map segment from shared object"), "ImportError: libx.so"),
        (caused(ConfigError("not a readable file"), MemoryError()), "MemoryError"),
        (caused(StorageError("full?"), caused(ValueError("x"), MemoryError())), "MemoryError"),
        (ExceptionGroup("two", [ValueError("x"), RuntimeError("std::bad_alloc")]), "bad_alloc"),
    ],
    ids=str,
)
def test_what_says_so_is_found(error: Exception, said: str) -> None:
    assert said in str(out_of_memory_message(error))


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x"),
        OSError(errno.ENOENT, "No such file or directory"),
        ImportError("libx.so: cannot allocate memory in static TLS block"),
        EndpointError("500: CUDA out of memory"),
        caused(EndpointError("500"), Exception("the server said: out of memory")),
    ],
    ids=str,
)
def test_what_says_something_else_is_left_alone(error: Exception) -> None:
    assert out_of_memory_message(error) is None


def test_what_was_hidden_says_nothing() -> None:
    try:
        try:
            raise MemoryError
        except MemoryError:
            raise ConfigError("another matter") from None
    except ConfigError as error:
        assert out_of_memory_message(error) is None


def test_nothing_in_it_moves_the_cursor() -> None:
    assert format_memory_error("a\x1b[2Jb").isprintable()
