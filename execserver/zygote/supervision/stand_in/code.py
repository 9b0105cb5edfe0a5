"""The machine code of the stand-in, as bytes and as assembly, and the program file that it makes.

Each line is an instruction; a line with a colon is a label.  A test has an assembler turn the assembly into
the bytes.  The stand-in names itself after argv[0], closes all descriptors and waits.  It handles no signal
and ends by nothing of its own: its tracer sets its registers so that it goes on at `leave`, with an exit
status in edi or x1, or at `die`, with a signal there.  `die` comes behind with an exit status, because the
first process of a pid namespace survives its own signals.
"""

from __future__ import annotations

from execserver.sandbox.backends.stage import elf_heads
from execserver.sandbox.backends.stage_code import BASE

_X86_64 = """
start:
488b7c2408      mov rdi, [rsp+8]
4885ff          test rdi, rdi
741c            jz shut
name:
4889fe          mov rsi, rdi
letter:
8a07            mov al, [rdi]
48ffc7          inc rdi
3c2f            cmp al, 47
74f4            je name
84c0            test al, al
75f3            jnz letter
bf0f000000      mov edi, 15
b89d000000      mov eax, 157
0f05            syscall
shut:
31ff            xor edi, edi
83ceff          or esi, -1
31d2            xor edx, edx
b8b4010000      mov eax, 436
0f05            syscall
wait:
b822000000      mov eax, 34
0f05            syscall
ebf7            jmp wait
die:
4189fc          mov r12d, edi
6a00            push 0
6a00            push 0
6a00            push 0
6a00            push 0
bf04000000      mov edi, 4
4889e6          mov rsi, rsp
b8a0000000      mov eax, 160
0f05            syscall
4489e7          mov edi, r12d
4889e6          mov rsi, rsp
31d2            xor edx, edx
41ba08000000    mov r10d, 8
b80d000000      mov eax, 13
0f05            syscall
b827000000      mov eax, 39
0f05            syscall
89c7            mov edi, eax
4489e6          mov esi, r12d
b83e000000      mov eax, 62
0f05            syscall
418dbc2480000000 lea edi, [r12+128]
leave:
b8e7000000      mov eax, 231
0f05            syscall
ebf7            jmp leave
"""

_AARCH64 = """
start:
e00740f9        ldr x0, [sp, 8]
200100b4        cbz x0, shut
name:
e10300aa        mov x1, x0
letter:
02144038        ldrb w2, [x0], 1
5fbc0071        cmp w2, 47
a0ffff54        b.eq name
a2ffff35        cbnz w2, letter
e00180d2        mov x0, 15
e81480d2        mov x8, 167
010000d4        svc 0
shut:
000080d2        mov x0, 0
01008092        mov x1, -1
020080d2        mov x2, 0
883680d2        mov x8, 436
010000d4        svc 0
wait:
000080d2        mov x0, 0
010080d2        mov x1, 0
020080d2        mov x2, 0
030080d2        mov x3, 0
040080d2        mov x4, 0
280980d2        mov x8, 73
010000d4        svc 0
f9ffff17        b wait
die:
f30301aa        mov x19, x1
ff8300d1        sub sp, sp, 32
ff7f00a9        stp xzr, xzr, [sp]
ff7f01a9        stp xzr, xzr, [sp, 16]
800080d2        mov x0, 4
e1030091        mov x1, sp
881480d2        mov x8, 164
010000d4        svc 0
e00313aa        mov x0, x19
e1030091        mov x1, sp
020080d2        mov x2, 0
030180d2        mov x3, 8
c81080d2        mov x8, 134
010000d4        svc 0
881580d2        mov x8, 172
010000d4        svc 0
e10313aa        mov x1, x19
281080d2        mov x8, 129
010000d4        svc 0
61020291        add x1, x19, 128
leave:
e00301aa        mov x0, x1
c80b80d2        mov x8, 94
010000d4        svc 0
fdffff17        b leave
"""
LISTINGS = {"x86_64": _X86_64, "aarch64": _AARCH64}


class Code:
    """The program file for a machine, and the addresses at which a stand-in is told to go on."""

    __slots__ = ("die", "image", "leave")

    def __init__(self, machine: str) -> None:
        code, labels = assembled(LISTINGS[machine])
        size = len(elf_heads(machine, 0))
        self.image = elf_heads(machine, size + len(code)) + code
        self.die, self.leave = BASE + size + labels["die"], BASE + size + labels["leave"]


def assembled(listing: str) -> tuple[bytes, dict[str, int]]:
    """Return the bytes of a listing, and the place of each label in them."""
    code, labels = b"", {}
    for line in listing.split("\n"):
        if line.endswith(":"):
            labels[line[:-1]] = len(code)
        elif line:
            code += bytes.fromhex(line.split()[0])
    return code, labels


CODES = {machine: Code(machine) for machine in LISTINGS}  # elsewhere the process waits in its execve
