"""Which file system a path is on, read from tables of mounts."""

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mount_table import mount_line, mount_share, refuse_locks

from branchwise.base import file_systems
from branchwise.base.errors import StorageError
from branchwise.base.file_systems import MOUNTS, Mount, mount_of, network_mount
from branchwise.base.lock import RunLock

NAMES = ["a", "ab", "a b", "-", " - ", "a\\040", "\t", "\n", "\r", "\x85", "é", "\udcff", "..a"]
PATHS = st.lists(st.sampled_from(NAMES), max_size=4).map(lambda names: Path("/", *names))
KINDS = st.sampled_from(["ext4", "nfs4", "cifs", "autofs", "overlay"])


@given(st.lists(st.tuples(PATHS, KINDS), max_size=8), PATHS)
def test_the_nearest_mount_above_a_path_wins_and_of_equal_ones_the_last(
    mounts: list[tuple[Path, str]], path: Path
) -> None:
    table = "".join(mount_line(point, kind) for point, kind in mounts)
    last = dict(mounts)
    nearest = next((folder for folder in (path, *path.parents) if folder in last), None)
    expected = None if nearest is None else Mount(last[nearest], str(nearest))
    assert mount_of(path, table) == expected


TABLE = r"""
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
40 27 0:40 / /home rw,relatime shared:7 master:2 - autofs systemd-1 rw,fd=3
41 40 0:41 / /home/eva rw,relatime shared:8 - nfs4 files:/export/eva rw,vers=4.2,local_lock=none
42 27 0:41 /runs /srv/my\040runs rw - nfs4 files:/export/eva rw
43 27 0:42 / /bucket rw,nosuid - fuse mountpoint-s3 rw,user_id=0
44 27 0:43 / /disc rw - fuseblk /dev/sdb1 rw
45 27 0:44 / /image rw - fuse image.AppImage ro
46 41 254:0 /scratch /home/eva/scratch rw - ext4 /dev/vda rw
47 27 0:45 / /covered rw - nfs files:/old rw
48 47 0:46 / /covered rw - tmpfs tmpfs rw
49 27 0:47 / /new rw - a-type-of-next-year source rw
a line of another format
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/home/eva/run", Mount("nfs4", "/home/eva")),
        ("/home/evan/run", None),
        ("/srv/my runs/run", Mount("nfs4", "/srv/my runs")),
        ("/bucket", Mount("fuse.mountpoint-s3", "/bucket")),
        ("/disc/run", None),
        ("/image/run", None),
        ("/home/eva/scratch/run", None),
        ("/covered/run", None),
        ("/new/run", None),
        ("/run", None),
    ],
)
def test_network_file_systems_are_named(
    path: str, expected: Mount | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_systems, "MOUNTS", tmp_path / "mountinfo")
    assert network_mount(Path(path)) is None, "a system without a table of mounts"
    (tmp_path / "mountinfo").write_text(TABLE)
    assert network_mount(Path(path)) == expected


def test_links_and_folders_that_do_not_exist_yet_are_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    share = tmp_path / "share"
    mount_share(monkeypatch, share, "cifs")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(share / "missing")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert network_mount(Path("link/run")) == Mount("cifs", str(share))
    assert network_mount(Path("share/run")) == Mount("cifs", str(share))
    assert network_mount(share / ".." / "run") is None
    assert network_mount(Path("loop/run")) is None


@pytest.mark.skipif(not MOUNTS.exists(), reason="needs Linux's table of mounts")
def test_the_table_of_this_machine_is_read() -> None:
    mount = mount_of(Path("/proc/self"), os.fsdecode(MOUNTS.read_bytes()))
    assert mount == Mount("proc", "/proc")


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EIO])
def test_a_file_system_without_locks_is_an_error_with_the_remedy(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_locks(monkeypatch, number)
    with pytest.raises(StorageError, match=r"cannot lock .*/run\.lock: ") as raised:
        RunLock(tmp_path / "run.lock")
    assert ("keep the run on a local disk" in str(raised.value)) == (number != errno.EIO)
    assert (tmp_path / "run.lock").read_bytes() == b""
