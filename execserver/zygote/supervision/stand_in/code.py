"""The machine code of the stand-in, as bytes and as assembly, and the program file that it makes.

Each line is an instruction; a line with a colon is a label.  A test has an assembler turn the assembly into
the bytes.  The stand-in names itself after argv[0], closes all descriptors and waits.  It handles no signal
and ends by nothing of its own: its tracer sets its registers so that it goes on at `leave`, with an exit
status in edi, or at `die`, with a signal there.  `die` comes behind with an exit status, because the first
process of a pid namespace survives its own signals.
"""

from __future__ import annotations

from execserver.sandbox.backends.stage import elf_heads
from execserver.sandbox.backends.stage_code import BASE

LISTING = """
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
MACHINE = "x86_64"  # elsewhere the intercepted process waits in its execve


def _assembled() -> tuple[bytes, dict[str, int]]:
    code, labels = b"", {}
    for line in LISTING.split("\n"):
        if line.endswith(":"):
            labels[line[:-1]] = len(code)
        elif line:
            code += bytes.fromhex(line.split()[0])
    return code, labels


CODE, _LABELS = _assembled()
_HEADS = elf_heads(MACHINE, 0)
IMAGE = elf_heads(MACHINE, len(_HEADS) + len(CODE)) + CODE
DIE = BASE + len(_HEADS) + _LABELS["die"]
LEAVE = BASE + len(_HEADS) + _LABELS["leave"]
