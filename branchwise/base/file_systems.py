"""Recognises network file systems, where locks and SQLite's files are not reliable."""

import os
import re
from pathlib import Path
from typing import NamedTuple

MOUNTS = Path("/proc/self/mountinfo")
"""Linux's table of mounts (proc(5)); other systems have none."""
LOCAL_DISK = "keep the run on a local disk, and copy it afterwards"
_TYPES = """
    9p afs beegfs ceph cifs drvfs fakeowner gfs2 glusterfs gpfs lustre nfs nfs4 ocfs2 pvfs2 smb3
    smbfs vboxsf virtiofs wekafs fuse.blobfuse2 fuse.ceph-fuse fuse.gcsfuse fuse.glusterfs
    fuse.goofys fuse.grpcfuse fuse.juicefs fuse.mountpoint-s3 fuse.rclone fuse.s3fs fuse.sshfs
    fuse.vmhgfs-fuse
"""
_NETWORK = frozenset(_TYPES.split())
"""Types whose files other machines can change, including the host of a virtual machine."""
_MOUNT = re.compile(r"^(?:[^ \n]+ ){4}([^ \n]+) [^\n]*? - ([^ \n]+) ([^ \n]*)", re.MULTILINE)
"""Mount point, type and source of a line. Blanks inside them are escaped."""


class Mount(NamedTuple):
    """A mounted file system, such as ("nfs4", "/home")."""

    kind: str
    point: str


def network_mount(path: Path) -> Mount | None:
    """Returns the network file system that a path is on, even if the path does not exist yet.

    Returns None for other file systems, and on systems without a table of mounts.
    """
    # Resolved first, because an automounter mounts a folder when it is looked up.
    resolved = Path(os.path.realpath(path))
    try:
        table = os.fsdecode(MOUNTS.read_bytes())
    except OSError:
        return None
    mount = mount_of(resolved, table)
    return mount if mount is not None and mount.kind in _NETWORK else None


def mount_of(path: Path, table: str) -> Mount | None:
    """Returns the mount with the longest mount point at or above a path; of equal ones, the last.

    Args:
        path: Absolute path without links.
        table: Content of a mountinfo file.
    """
    mounts = [
        # Some FUSE programs name themselves only as the source: "mountpoint-s3".
        Mount(f"fuse.{source}" if kind == "fuse" else kind, _unescaped(point))
        for point, kind, source in _MOUNT.findall(table)
    ]
    above = [mount for mount in reversed(mounts) if path.is_relative_to(mount.point)]
    return max(above, key=lambda mount: len(mount.point), default=None)  # the first of equal ones


def _unescaped(point: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda digits: chr(int(digits[1], 8)), point)
