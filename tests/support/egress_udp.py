"""Run by a process with a SOCKS proxy: associates for datagrams, and sends some that nobody answers."""

import os
import socket
import struct
import sys

_, host, port = os.environ["ALL_PROXY"].split(":")
control = socket.create_connection((host.strip("/"), int(port)))
control.sendall(b"\x05\x01\x00")
control.recv(2)
control.sendall(b"\x05\x03\x00\x01" + bytes(6))
reply = control.recv(10)
sys.stdout.write(f"reply {reply[:4].hex()} port\n")
relay = ("127.0.0.1", struct.unpack(">H", reply[8:])[0])
for name in ("stable.example", "other.example", "10.9.9.9"):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        datagrams.settimeout(0.3)
        datagrams.sendto(b"\0\0\0\x03" + bytes([len(name)]) + name.encode() + b"\0\x35x", relay)
        try:
            sys.stdout.write(f"{name} {datagrams.recv(100)!r}\n")
        except OSError as error:
            sys.stdout.write(f"{name} {error!r}\n")
