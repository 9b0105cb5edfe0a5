"""The machine code of the Landlock stage (see `stage`), as bytes and as assembly.

Each line is an instruction; a line with a colon is a label.  A test has an assembler turn the assembly into
the bytes.  Behind the code, at DATA, are words of eight bytes:

 0  the ruleset          8  the stage's own descriptor      16  address of the paths to execute, ended by 0
24  address and length of the text that begins the message that nothing was executed
40  the same for rules that are refused                     56  /bin/sh      64  the error texts
72  the rules: rights and address of the path each, ended by 0

An error text has 64 bytes, of which the first is its length.  Registers: the stack as the stage found it
(rbp, x19), DATA (rbx, x20), the position in a list (r12, x21), the variables (r14, x22), and the error to
report (r13, x23).
"""

from __future__ import annotations

BASE = 0x400000
DATA = BASE + 0x400
KNOWN_ERRORS = 134

_X86_64 = """
4889e5          mov rbp, rsp
bb00044000      mov ebx, 0x400400
4883ec20        sub rsp, 32
4c8d6348        lea r12, [rbx+72]
rule:
498b0424        mov rax, [r12]
4885c0          test rax, rax
7455            jz restrict
48890424        mov [rsp], rax
48c7c79cffffff  mov rdi, -100
498b742408      mov rsi, [r12+8]
ba00002800      mov edx, 0x280000
b801010000      mov eax, 257
0f05            syscall
85c0            test eax, eax
0f88ce000000    js refused
89442408        mov [rsp+8], eax
8b3b            mov edi, [rbx]
be01000000      mov esi, 1
4889e2          mov rdx, rsp
4531d2          xor r10d, r10d
b8bd010000      mov eax, 445
0f05            syscall
85c0            test eax, eax
0f88ae000000    js refused
8b7c2408        mov edi, [rsp+8]
b803000000      mov eax, 3
0f05            syscall
4983c410        add r12, 16
eba2            jmp rule
restrict:
8b3b            mov edi, [rbx]
31f6            xor esi, esi
b8be010000      mov eax, 446
0f05            syscall
85c0            test eax, eax
0f888a000000    js refused
8b3b            mov edi, [rbx]
b803000000      mov eax, 3
0f05            syscall
8b7b08          mov edi, [rbx+8]
b803000000      mov eax, 3
0f05            syscall
488b4500        mov rax, [rbp]
4c8d74c510      lea r14, [rbp+rax*8+16]
4c8b6310        mov r12, [rbx+16]
41bd02000000    mov r13d, 2
attempt:
498b3c24        mov rdi, [r12]
4885ff          test rdi, rdi
7455            jz missing
488d7510        lea rsi, [rbp+16]
4c89f2          mov rdx, r14
b83b000000      mov eax, 59
0f05            syscall
f7d8            neg eax
83f808          cmp eax, 8
741e            je script
83f80d          cmp eax, 13
7410            je note
83f802          cmp eax, 2
7405            je absent
83f814          cmp eax, 20
752e            jne ended
absent:
4183fd0d        cmp r13d, 13
7403            je next
note:
4189c5          mov r13d, eax
next:
4983c408        add r12, 8
ebc4            jmp attempt
script:
488b4338        mov rax, [rbx+56]
48894508        mov [rbp+8], rax
48897d10        mov [rbp+16], rdi
4889c7          mov rdi, rax
488d7508        lea rsi, [rbp+8]
4c89f2          mov rdx, r14
b83b000000      mov eax, 59
0f05            syscall
f7d8            neg eax
ended:
4189c5          mov r13d, eax
missing:
488d7318        lea rsi, [rbx+24]
eb09            jmp tell
refused:
f7d8            neg eax
4189c5          mov r13d, eax
488d7328        lea rsi, [rbx+40]
tell:
488b06          mov rax, [rsi]
48890424        mov [rsp], rax
488b4608        mov rax, [rsi+8]
4889442408      mov [rsp+8], rax
4181fd86000000  cmp r13d, 134
7203            jb known
4531ed          xor r13d, r13d
known:
49c1e506        shl r13, 6
4c036b40        add r13, [rbx+64]
410fb64500      movzx eax, byte ptr [r13]
4889442418      mov [rsp+24], rax
49ffc5          inc r13
4c896c2410      mov [rsp+16], r13
bf02000000      mov edi, 2
4889e6          mov rsi, rsp
ba02000000      mov edx, 2
b814000000      mov eax, 20
0f05            syscall
bf01000000      mov edi, 1
b8e7000000      mov eax, 231
0f05            syscall
"""

_AARCH64 = """
f3030091        mov x19, sp
1408a0d2        mov x20, 0x400000
148080f2        movk x20, 0x400
ff8300d1        sub sp, sp, 32
95220191        add x21, x20, 72
rule:
a90240f9        ldr x9, [x21]
a90200b4        cbz x9, restrict
e90300f9        str x9, [sp]
600c8092        mov x0, -100
a10640f9        ldr x1, [x21, 8]
0205a0d2        mov x2, 0x280000
080780d2        mov x8, 56
010000d4        svc 0
a007f837        tbnz w0, 31, refused
e00b00b9        str w0, [sp, 8]
800240b9        ldr w0, [x20]
210080d2        mov x1, 1
e2030091        mov x2, sp
030080d2        mov x3, 0
a83780d2        mov x8, 445
010000d4        svc 0
a006f837        tbnz w0, 31, refused
e00b40b9        ldr w0, [sp, 8]
280780d2        mov x8, 57
010000d4        svc 0
b5420091        add x21, x21, 16
ebffff17        b rule
restrict:
800240b9        ldr w0, [x20]
010080d2        mov x1, 0
c83780d2        mov x8, 446
010000d4        svc 0
6005f837        tbnz w0, 31, refused
800240b9        ldr w0, [x20]
280780d2        mov x8, 57
010000d4        svc 0
800a40b9        ldr w0, [x20, 8]
280780d2        mov x8, 57
010000d4        svc 0
690240f9        ldr x9, [x19]
760e098b        add x22, x19, x9, lsl 3
d6420091        add x22, x22, 16
950a40f9        ldr x21, [x20, 16]
57008052        mov w23, 2
attempt:
a00240f9        ldr x0, [x21]
800300b4        cbz x0, missing
61420091        add x1, x19, 16
e20316aa        mov x2, x22
a81b80d2        mov x8, 221
010000d4        svc 0
e003004b        neg w0, w0
1f200071        cmp w0, 8
80010054        b.eq script
1f340071        cmp w0, 13
e0000054        b.eq note
1f080071        cmp w0, 2
60000054        b.eq absent
1f500071        cmp w0, 20
c1010054        b.ne ended
absent:
ff360071        cmp w23, 13
40000054        b.eq next
note:
f703002a        mov w23, w0
next:
b5220091        add x21, x21, 8
edffff17        b attempt
script:
a90240f9        ldr x9, [x21]
801e40f9        ldr x0, [x20, 56]
60a600a9        stp x0, x9, [x19, 8]
61220091        add x1, x19, 8
e20316aa        mov x2, x22
a81b80d2        mov x8, 221
010000d4        svc 0
e003004b        neg w0, w0
ended:
f703002a        mov w23, w0
missing:
89620091        add x9, x20, 24
03000014        b tell
refused:
f703004b        neg w23, w0
89a20091        add x9, x20, 40
tell:
2a2d40a9        ldp x10, x11, [x9]
ea2f00a9        stp x10, x11, [sp]
ff1a0271        cmp w23, 134
43000054        b.lo known
17008052        mov w23, 0
known:
892240f9        ldr x9, [x20, 64]
2919178b        add x9, x9, x23, lsl 6
2a154038        ldrb w10, [x9], 1
e92b01a9        stp x9, x10, [sp, 16]
400080d2        mov x0, 2
e1030091        mov x1, sp
420080d2        mov x2, 2
480880d2        mov x8, 66
010000d4        svc 0
200080d2        mov x0, 1
c80b80d2        mov x8, 94
010000d4        svc 0
"""


def _code(listing: str) -> bytes:
    return b"".join(bytes.fromhex(line.split()[0]) for line in listing.split("\n") if line[-1:] not in ":")


LISTINGS = {"x86_64": _X86_64, "aarch64": _AARCH64}
CODE = {machine: _code(listing) for machine, listing in LISTINGS.items()}
