"""Cache entries: complete, unchanged since they were written, and private to their user."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from multiprocessing.synchronize import Barrier
from pathlib import Path
from random import Random

import pytest
from damage import HARMS, Harm, fifo, flipped
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from branchwise.base.errors import ConfigError, StorageError
from branchwise.storage import file_seal
from branchwise.storage.cache import cache_folder, cache_section, get_or_build
from branchwise.storage.file_seal import SEAL, file_fault, seal_file

SMALL = {"one.npy": b"first" * 20, "deeper/two.json": b'{"k": [1, 2]}', "empty": b""}


def fill(folder: Path) -> None:
    for name, content in SMALL.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)


def opened(entry: Path, said: list[str] | None = None) -> dict[str, bytes]:
    found = get_or_build(entry, fill, (said if said is not None else []).append)
    assert found == entry
    names = (path.relative_to(found).as_posix() for path in found.rglob("*") if path.is_file())
    return {name: (found / name).read_bytes() for name in names if name != SEAL}


def not_built(folder: Path) -> None:
    pytest.fail("an intact entry was rebuilt")


def test_an_entry_is_built_once(tmp_path: Path) -> None:
    assert opened(tmp_path / "room" / "entry") == SMALL
    get_or_build(tmp_path / "room" / "entry", not_built)
    names = sorted(path.name for path in (tmp_path / "room").iterdir())
    assert names == ["entry", "entry.lock"], "no other file is left"
    assert (tmp_path / "room" / "entry").stat().st_mode & 0o777 == 0o700


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(places=st.lists(st.integers(0), min_size=1, max_size=4, unique=True))
def test_flipped_bits_anywhere_are_detected(tmp_path: Path, places: list[int]) -> None:
    entry, said = tmp_path / "entry", list[str]()
    opened(entry)
    files = sorted(path for path in entry.rglob("*") if path.is_file() and path.stat().st_size)
    whole = b"".join(path.read_bytes() for path in files)
    changed = bytearray(whole)
    for place in {place % (8 * len(whole)) for place in places}:
        changed[place // 8] ^= 1 << place % 8
    for path in files:
        n = path.stat().st_size
        path.write_bytes(changed[:n])
        del changed[:n]
    assert opened(entry, said) == SMALL
    assert ["rebuilt" in line for line in said] == [True]


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
@pytest.mark.parametrize("name", ["one.npy", "deeper/two.json", SEAL])
def test_a_damaged_file_is_logged_and_its_entry_rebuilt(
    name: str, harm: Harm, tmp_path: Path
) -> None:
    entry, said = tmp_path / "room" / "entry", list[str]()
    opened(entry)
    harm(entry / name, Random(2))
    assert opened(entry, said) == SMALL
    assert [line.startswith(f"{entry}: damaged, so it is rebuilt (") for line in said] == [True]
    assert Path(name).name in said[0] or name == SEAL, "a damaged seal may name a file"
    get_or_build(entry, not_built)
    assert sorted(path.name for path in entry.parent.iterdir() if path.suffix == ".tmp") == []


@pytest.mark.parametrize("instead", ["file", "fifo", "dangling", "link to a sound one"])
def test_an_entry_that_is_not_a_folder_is_replaced(instead: str, tmp_path: Path) -> None:
    entry, said = tmp_path / "room" / "entry", list[str]()
    opened(entry)
    entry.rename(tmp_path / "entry")
    if instead == "file":
        entry.write_bytes(b"x")
    elif instead == "fifo":
        os.mkfifo(entry)
    else:
        entry.symlink_to(tmp_path / ("nowhere" if instead == "dangling" else "entry"))
    assert opened(entry, said) == SMALL
    assert "not a folder" in said[0]
    assert not entry.is_symlink()


def test_an_entry_moved_to_another_name_is_rebuilt(tmp_path: Path) -> None:
    said = list[str]()
    opened(tmp_path / "one")
    (tmp_path / "one").rename(tmp_path / "two")
    assert opened(tmp_path / "two", said) == SMALL
    assert "of another entry" in said[0]


def test_an_entry_is_verified_once_per_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = tmp_path / "entry"
    opened(entry)
    get_or_build(entry, not_built)
    monkeypatch.setattr(file_seal, "_hash", lambda *_: pytest.fail("read a second time"))
    get_or_build(entry, not_built)
    (entry / "one.npy").write_bytes(SMALL["one.npy"])  # same content, new time stamp
    with pytest.raises(pytest.fail.Exception, match="a second time"):
        get_or_build(entry, not_built)


def test_a_kill_while_building_leaves_no_entry(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path\n"
        "from branchwise.storage.cache import get_or_build\n"
        "def build(new):\n"
        "    (new / 'half').write_text('half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "get_or_build(Path(sys.argv[1]), build)\n"
    )
    root = Path(__file__).parents[2]
    killed = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "room" / "entry")],
        check=False,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "room" / "entry").exists()
    said = list[str]()
    assert opened(tmp_path / "room" / "entry", said) == SMALL
    assert said == [], "an unfinished build is not damage"
    assert len(list((tmp_path / "room").iterdir())) == 2, "the killed build's files are removed"


def _open_at_once(entry: Path, ready: Barrier, log: Path) -> None:
    def build(folder: Path) -> None:
        with log.open("a") as file:
            file.write("built\n")
        fill(folder)

    ready.wait(60)
    get_or_build(entry, build, lambda line: None)
    assert opened(entry) == SMALL


@pytest.mark.parametrize("before", ["missing", "damaged"])
def test_concurrent_processes_build_an_entry_once(before: str, tmp_path: Path) -> None:
    entry, log, fork = tmp_path / "entry", tmp_path / "log", multiprocessing.get_context("fork")
    for n in range(5):
        entry = tmp_path / f"entry-{n}"
        if before == "damaged":
            opened(entry)
            fifo(entry / "one.npy", Random(0))
        ready = fork.Barrier(4)
        children = [fork.Process(target=_open_at_once, args=(entry, ready, log)) for _ in range(4)]
        for child in children:
            child.start()
        for child in children:
            child.join()
        assert [child.exitcode for child in children] == [0] * 4
        assert log.read_text() == "built\n" * (n + 1)


def test_an_entry_replaced_during_the_check_is_rebuilt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(tmp_path / "entry")
    real = file_seal._files_in

    def replaced(folder: Path) -> dict[str, Path]:
        if not (tmp_path / "aside").exists():  # after `rglob` saw the folder, before it read it
            folder.rename(tmp_path / "aside")
            os.scandir(folder)
        return real(folder)

    monkeypatch.setattr(file_seal, "_files_in", replaced)
    assert opened(tmp_path / "entry") == SMALL


def test_a_failed_build_leaves_no_entry(tmp_path: Path) -> None:
    def full(folder: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(StorageError, match=r"room/entry.*No space.*BRANCHWISE_CACHE"):
        get_or_build(tmp_path / "room" / "entry", full)
    assert [path.name for path in (tmp_path / "room").iterdir()] == ["entry.lock"]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BRANCHWISE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_new_cache_is_private_to_its_user(cache: Path) -> None:
    before = os.umask(0o002)
    try:
        assert cache_section("gguf") == cache / "gguf"
    finally:
        os.umask(before)
    for folder in (cache, cache / "gguf"):
        assert folder.stat().st_mode & 0o777 == 0o700
    assert cache_section("gguf") == cache / "gguf"


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_a_cache_that_others_can_write_is_refused(mode: int, cache: Path) -> None:
    cache_section("gguf")
    cache.chmod(mode)
    with pytest.raises(ConfigError, match=r"others can write it.*BRANCHWISE_CACHE"):
        cache_section("gguf")
    cache.chmod(0o755)
    cache_section("gguf")


def test_a_missing_home_folder_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("BRANCHWISE_CACHE", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(ConfigError, match="BRANCHWISE_CACHE"):
        cache_folder()


def test_changes_of_a_sealed_file_or_its_seal_are_detected(tmp_path: Path) -> None:
    path, random = tmp_path / "policy.gguf", Random(3)
    content = random.randbytes(5000)
    path.write_bytes(content)
    assert file_fault(path) == "policy.gguf.seal is missing"
    seal_file(path)
    assert file_fault(path) is None
    for harmed in (path, tmp_path / "policy.gguf.seal"):
        kept = harmed.read_bytes()
        for _ in range(10):
            flipped(harmed, random)
            assert file_fault(path)
            harmed.write_bytes(kept)
            assert file_fault(path) is None
    for seal in ("[]", json.dumps({"name": path.name, "files": {}})):
        (tmp_path / "policy.gguf.seal").write_text(seal)
        assert file_fault(path)
