/* Whether an unpacked tree is ours: every file in it as the build has written it down, and nothing else. */
#ifndef PROVE_H
#define PROVE_H

#include <stddef.h>

/* A line for each folder, `d PATH`, and each file, `f SIZE BLAKE2B-256 PATH`. */
struct manifest {
    const char *text;
    size_t size;
};

/* Compare what lies below the folder `dir` is open on with the manifest; 1 when it is the same, else 0, or -1 and `errno`
 * when there were not the descriptors or the memory to tell.
 * It takes no longer than our own tree does, whatever has been put there: no pipe and no lease is waited for. */
int is_proven(int dir, const struct manifest *manifest);

/* Tell whether an error says nothing about what was asked for, only that this process is short of something. */
int is_shortage(int error);

#endif
