"""SFTP for a store: only hosts whose key is known, and no question that waits for ever."""

from __future__ import annotations

import stat
from typing import Any

import paramiko
from fsspec.implementations.sftp import SFTPFileSystem

CONNECT_S = 15.0
SILENCE_S = 60.0


class KnownHostFiles(SFTPFileSystem):  # type: ignore[misc]  # a base without types
    """fsspec's SFTP takes any host for the right one; this one asks `known_hosts`, as ssh does.

    Signatures protect what is read there, but not a password that is given to the wrong host.
    """

    def _connect(self) -> None:
        given = dict(self.ssh_kwargs)
        known_hosts = given.pop("known_hosts", None)
        self.client = paramiko.SSHClient()
        self.client.load_system_host_keys(known_hosts)
        self.client.set_missing_host_key_policy(paramiko.RejectPolicy())
        limits = {"timeout": CONNECT_S, "banner_timeout": CONNECT_S, "auth_timeout": CONNECT_S}
        self.client.connect(self.host, **{**limits, **given})
        self.ftp = self.client.open_sftp()
        self.ftp.get_channel().settimeout(SILENCE_S)

    def info(self, path: str) -> dict[str, Any]:
        """Return what lies there itself: a link is one, and neither it nor a pipe is taken for a file."""
        path = self._strip_protocol(path)
        status = self.ftp.lstat(path)
        return {**self._described(status), "name": path}

    def ls(self, path: str, detail: bool = False) -> list[Any]:
        """Return what lies in a folder, each described as `info` does."""
        path = self._strip_protocol(path)
        entries = [
            {**self._described(status), "name": f"{path.rstrip('/')}/{status.filename}"}
            for status in self.ftp.listdir_iter(path)
        ]
        return entries if detail else sorted(entry["name"] for entry in entries)

    def _described(self, status: paramiko.SFTPAttributes) -> dict[str, Any]:
        known: dict[str, Any] = self._decode_stat(status)
        is_special = known["type"] == "file" and not stat.S_ISREG(status.st_mode)
        return {**known, "type": "other"} if is_special else known
