"""Run by a process with a network proxy: evaluates its arguments, which call the functions here."""

import json  # noqa: F401 - for the recorded expressions
import os
import re
import socket
import sys

ANSWER_S, SILENCE_S, DONE_S = 25.0, 2.0, 0.25


def addr(variable: str) -> "tuple[str, int]":
    found = re.search(r"://([^:/]+):(\d+)", os.environ.get(variable, ""))
    return (found.group(1), int(found.group(2))) if found else None  # type: ignore[return-value]


def patience(data: bytes) -> float:
    """Return how long to wait for more: it comes at once if at all, and not behind a complete answer."""
    head, end, body = data.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)\ncontent-length: (\d+)", head)
    if re.search(rb"(?i)\nconnection: close", head):
        return ANSWER_S
    if b"hello-tcp" in data:  # all that the server says by itself
        return DONE_S
    return DONE_S if end and length and len(body) >= int(length[1]) else SILENCE_S


def recvall(sock: socket.socket, t: float = 6) -> bytes:
    sock.settimeout(ANSWER_S)  # the recorded limits are too short for a busy machine
    data = b""
    try:
        while len(data) <= 20000:
            more = sock.recv(65536)
            if not more:
                break
            data += more
            sock.settimeout(patience(data))
    except OSError as error:
        data += b"<%b>" % type(error).__name__.encode()
    return data


def raw(text: str, var: str = "HTTP_PROXY", t: float = 6) -> str:
    with socket.create_connection(addr(var), timeout=5) as sock:
        sock.sendall(text.encode("latin-1"))
        return recvall(sock, t).decode("latin-1")


def get(url: str, method: str = "GET", hdr: str = "", body: str = "", t: float = 6) -> str:
    host = url.removeprefix("http://").partition("/")[0]
    length = f"Content-Length: {len(body)}\r\n" if body else ""
    head = f"{method} {url} HTTP/1.1\r\nHost: {host}\r\n{hdr}Connection: close\r\n{length}\r\n"
    return raw(head + body, t=t)


def connect(hp: str, t: float = 3, hdr: str = "") -> str:
    return raw(f"CONNECT {hp} HTTP/1.1\r\nHost: {hp}\r\n{hdr}\r\n", t=t)


def socks(host: str, port: int, cmd: int = 1, t: float = 3, meth: bytes = b"\x05\x01\x00") -> str:
    with socket.create_connection(addr("ALL_PROXY"), timeout=ANSWER_S) as sock:
        sock.sendall(meth)
        greeting = sock.recv(100)
        if greeting[:2] != b"\x05\x00":
            return f"greeting {greeting.hex()}"
        if re.fullmatch(r"\d+\.\d+\.\d+\.\d+", host):
            address = b"\x01" + socket.inet_aton(host)
        else:
            address = b"\x03" + bytes([len(host)]) + host.encode()
        sock.sendall(b"\x05" + bytes([cmd]) + b"\0" + address + port.to_bytes(2, "big"))
        return f"reply {recvall(sock, t).hex()}"


if __name__ == "__main__":
    for expression in sys.argv[1:]:
        sys.stdout.write(f"## {expression}\n")
        try:
            sys.stdout.write(f"{eval(expression)}\n")
        except Exception as failure:
            sys.stdout.write(f"EXC {failure!r}\n")
        sys.stdout.flush()
