/* The manifest is a part of the file that is running, so it needs no proof itself.
 *
 * The digest is BLAKE2b (RFC 7693) with 32 bytes and no key: on processors without instructions for it SHA-256
 * takes three times as long. */
#define _GNU_SOURCE
#include "prove.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLOCK = 128, DIGEST = 32, ROUNDS = 12, PIECE = 1 << 16, DEEPEST = 8 };

/* ---- BLAKE2b --------------------------------------------------------------------------------------- */

static const uint64_t initial[8] = {
    0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
    0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179,
};

static const uint8_t order[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
};

#define TURN(value, by) ((value) >> (by) | (value) << (64 - (by)))
#define MIX(a, b, c, d, x, y)                                             \
    a += b + (x), d = TURN(d ^ a, 32), c += d, b = TURN(b ^ c, 24);       \
    a += b + (y), d = TURN(d ^ a, 16), c += d, b = TURN(b ^ c, 63)

static void compress(uint64_t *state, const unsigned char *block, uint64_t count, int is_last) {
    uint64_t m[16], v[16];
    memcpy(m, block, sizeof m); /* little-endian, as all that this program is built for */
    memcpy(v, state, 8 * sizeof *v), memcpy(v + 8, initial, sizeof initial);
    v[12] ^= count;
    if (is_last) v[14] = ~v[14];
    for (int round = 0; round < ROUNDS; round++) {
        const uint8_t *s = order[round % 10];
        MIX(v[0], v[4], v[8], v[12], m[s[0]], m[s[1]]), MIX(v[1], v[5], v[9], v[13], m[s[2]], m[s[3]]);
        MIX(v[2], v[6], v[10], v[14], m[s[4]], m[s[5]]), MIX(v[3], v[7], v[11], v[15], m[s[6]], m[s[7]]);
        MIX(v[0], v[5], v[10], v[15], m[s[8]], m[s[9]]), MIX(v[1], v[6], v[11], v[12], m[s[10]], m[s[11]]);
        MIX(v[2], v[7], v[8], v[13], m[s[12]], m[s[13]]), MIX(v[3], v[4], v[9], v[14], m[s[14]], m[s[15]]);
    }
    for (int i = 0; i < 8; i++) state[i] ^= v[i] ^ v[i + 8];
}

/* Hash a file of a known size; 0 when it is shorter or cannot be read. */
static int digest_of(int file, uint64_t size, char *hex) {
    static unsigned char piece[PIECE];
    uint64_t state[8], done = 0;
    memcpy(state, initial, sizeof state);
    state[0] ^= 0x01010000 ^ DIGEST;
    do {
        size_t wanted = size - done < PIECE ? (size_t)(size - done) : PIECE, filled = 0;
        while (filled < wanted) {
            ssize_t got = read(file, piece + filled, wanted - filled);
            if (got <= 0) return 0;
            filled += (size_t)got;
        }
        memset(piece + filled, 0, (BLOCK - filled % BLOCK) % BLOCK);
        if (!filled) memset(piece, 0, BLOCK); /* an empty file is one block of nothing */
        size_t at = 0;
        do {
            uint64_t count = done + (filled - at < BLOCK ? filled : at + BLOCK);
            compress(state, piece + at, count, count == size);
            at += BLOCK;
        } while (at < filled);
        done += filled;
    } while (done < size);
    for (int i = 0; i < DIGEST; i++) sprintf(hex + 2 * i, "%02x", (unsigned)(state[i / 8] >> 8 * (i % 8) & 0xff));
    return 1;
}

/* ---- the tree -------------------------------------------------------------------------------------- */

struct entry {
    char kind;
    uint64_t size;
    char digest[2 * DIGEST + 1], path[PATH_MAX];
};

/* Find a path among the lines; 0 when it is not there. */
static int find(const struct manifest *manifest, const char *path, struct entry *entry) {
    const char *line = manifest->text, *end = line + manifest->size;
    size_t length = strlen(path);
    for (const char *next; line < end; line = next + 1) {
        next = memchr(line, '\n', (size_t)(end - line));
        if (!next) return 0;
        size_t whole = (size_t)(next - line);
        if (whole <= length || memcmp(next - length, path, length) || next[-1 - (ptrdiff_t)length] != ' ') continue;
        entry->kind = line[0];
        if (entry->kind == 'd') return whole == length + 2;
        unsigned long long size;
        int used = 0;
        if (sscanf(line, "f %llu %64[0-9a-f] %n", &size, entry->digest, &used) != 2) return 0;
        entry->size = size;
        return (size_t)used + length == whole;
    }
    return 0;
}

static size_t lines(const struct manifest *manifest) {
    size_t count = 0;
    for (size_t i = 0; i < manifest->size; i++) count += manifest->text[i] == '\n';
    return count;
}

static int shortage; /* the `errno` of one that was met with while comparing */

int is_shortage(int error) { return error == EMFILE || error == ENFILE || error == ENOMEM; }

/* Keep in mind why something could not be opened; -1. */
static int unopened(void) {
    if (is_shortage(errno)) shortage = errno;
    return -1;
}

/* A further name of a file could lie where others write. */
static int is_own(const struct stat *found) {
    return found->st_uid == geteuid() && !(found->st_mode & (S_IWGRP | S_IWOTH)) &&
           (S_ISDIR(found->st_mode) || (S_ISREG(found->st_mode) && found->st_nlink == 1));
}

static int is_file(int dir, const char *name, const struct entry *entry) {
    struct stat found;
    char digest[2 * DIGEST + 1];
    int file = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (file < 0) return unopened(), 0;
    int same = !fstat(file, &found) && S_ISREG(found.st_mode) && is_own(&found) &&
               (uint64_t)found.st_size == entry->size && digest_of(file, entry->size, digest) &&
               !strcmp(digest, entry->digest);
    close(file);
    return same;
}

/* Compare a folder; returns how many lines were met with in it, or -1 when something is not as written.
 * `dir` is closed. */
static long compare(int dir, const char *path, const struct manifest *manifest, int depth) {
    struct stat found;
    struct dirent *each;
    static struct entry entry; /* done with before the next one is looked at */
    char below[PATH_MAX];
    long count = 0;
    if (depth > DEEPEST || fstat(dir, &found) || !is_own(&found)) return close(dir), -1;
    DIR *listing = fdopendir(dir);
    if (!listing) return unopened(), close(dir), -1;
    while (count >= 0 && (each = readdir(listing))) {
        const char *name = each->d_name;
        if (!strcmp(name, ".") || !strcmp(name, "..")) continue;
        if (snprintf(below, sizeof below, "%s%s%s", path, *path ? "/" : "", name) >= (int)sizeof below ||
            !find(manifest, below, &entry)) {
            count = -1;
        } else if (entry.kind == 'd') {
            int inner = openat(dirfd(listing), name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
            long more = inner < 0 ? unopened() : compare(inner, below, manifest, depth + 1);
            count = more < 0 ? -1 : count + more + 1;
        } else {
            count = is_file(dirfd(listing), name, &entry) ? count + 1 : -1;
        }
    }
    closedir(listing);
    return count;
}

int is_proven(int dir, const struct manifest *manifest) {
    shortage = 0;
    int again = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    long found = again < 0 ? unopened() : compare(again, "", manifest, 0);
    if (shortage) return errno = shortage, -1;
    return found == (long)lines(manifest);
}
