"""Recognition of errors that mean that memory ran out."""

import errno

import pytest

from branchwise.base.errors import ConfigError, EndpointError, StorageError
from branchwise.base.memory import format_memory_error, out_of_memory_message


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
        (RuntimeError("infer_request.cpp:224:\nFailed to allocate 178 bytes\n"), "178 bytes"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "you tried"),
        (type("OutOfMemoryError", (RuntimeError,), {})("CUDA"), "OutOfMemoryError: CUDA"),
        (caused(ConfigError("not a readable file"), MemoryError()), "MemoryError"),
        (caused(StorageError("full?"), caused(ValueError("x"), MemoryError())), "MemoryError"),
        (ExceptionGroup("two", [ValueError("x"), RuntimeError("std::bad_alloc")]), "bad_alloc"),
    ],
    ids=str,
)
def test_errors_of_exhausted_memory_are_recognised(error: Exception, said: str) -> None:
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
def test_other_errors_are_not_recognised(error: Exception) -> None:
    assert out_of_memory_message(error) is None


def test_a_suppressed_cause_is_ignored() -> None:
    try:
        try:
            raise MemoryError
        except MemoryError:
            raise ConfigError("another matter") from None
    except ConfigError as error:
        assert out_of_memory_message(error) is None


def test_a_memory_error_message_is_printable() -> None:
    assert format_memory_error("a\x1b[2Jb").isprintable()
