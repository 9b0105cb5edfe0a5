/* System calls without a C library: a fork of a program this small touches some thirty pages. */
#ifndef KERNEL_H
#define KERNEL_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>

/* Make a system call; returns the result, or minus the errno. */
static inline long call6(long number, long a, long b, long c, long d, long e, long f) {
#if defined(__x86_64__)
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
#elif defined(__aarch64__)
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c,
                                     x3 __asm__("x3") = d, x4 __asm__("x4") = e, x5 __asm__("x5") = f;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
    return x0;
#else
#error "no such processor"
#endif
}

#define FILLED(name, a, b, c, d, e, f, ...) \
    call6(name, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))
#define CALL(...) FILLED(__VA_ARGS__, 0, 0, 0, 0, 0, 0, 0)

/* Run a function in a child that shares this memory, on a stack of its own; this process waits until the child has
 * become a program or ended.  Returns its pid, or minus the errno. */
long run_beside(unsigned long flags, void *stack_end, void (*function)(void));

/* End this process. */
static inline _Noreturn void leave(int status) {
    for (;;) CALL(SYS_exit_group, status);
}

static inline size_t length_of(const char *text) {
    size_t length = 0;
    while (text[length]) length++;
    return length;
}

static inline int begins_with(const char *text, const char *prefix) {
    while (*prefix)
        if (*text++ != *prefix++) return 0;
    return 1;
}

/* What compilers ask for by themselves. */
void *memcpy(void *to, const void *from, size_t size);
void *memset(void *to, int value, size_t size);

#endif
