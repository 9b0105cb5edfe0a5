/* gzip, deflate (RFC 1951, 1952) and the tar format, as far as build.py makes use of them.
 *
 * Data flows one way: bits -> `inflate` -> window of 64 KiB -> `untar` -> files.  The archive is our own, but a
 * download may have damaged it: every length is checked, and the checksum of the whole decides at the end. */
#define _GNU_SOURCE
#include "unpack.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_BITS = 15, WINDOW = 1 << 16, BLOCK = 512, LITERALS = 288, DISTANCES = 32 };

static const char DAMAGED[] = "the file is damaged or incomplete, copy it again";

/* ---- tar ------------------------------------------------------------------------------------------- */

struct untar {
    int dir, file;              /* `file` is open while its data arrives, else -1 */
    unsigned char header[BLOCK];
    size_t filled;              /* bytes of the header that have arrived */
    uint64_t left, padding;     /* of the current member */
};

static uint64_t octal(const unsigned char *text, size_t length) {
    uint64_t value = 0;
    for (size_t i = 0; i < length && text[i] >= '0' && text[i] <= '7'; i++) value = value * 8 + (text[i] - '0');
    return value;
}

static const char *unmade(const char *what) {
    switch (errno) { /* the folder is ours and new: only a damaged archive has a name that this is said of */
    case ENOENT: case ENOTDIR: case EEXIST: case ELOOP: case ENAMETOOLONG: case EINVAL: return DAMAGED;
    }
    return what;
}

static const char *begin_member(struct untar *tar) {
    const unsigned char *h = tar->header;
    char name[101], target[101], path[300];
    if (!h[0]) return NULL; /* the blocks of zeros at the end */
    memcpy(name, h, 100), name[100] = 0;
    memcpy(target, h + 157, 100), target[100] = 0;
    size_t at = 0;
    if (h[345]) { /* ustar: the front of a long name stands apart */
        at = strnlen((const char *)h + 345, 155);
        memcpy(path, h + 345, at), path[at++] = '/';
    }
    strcpy(path + at, name);
    mode_t mode = octal(h + 100, 8) & 0777;
    tar->left = octal(h + 124, 12);
    tar->padding = (BLOCK - tar->left % BLOCK) % BLOCK;
    if (path[0] == '/' || strstr(path, "..")) return DAMAGED;
    switch (h[156]) {
    case '5':
        if (mkdirat(tar->dir, path, mode)) return unmade("cannot make a folder");
        return NULL;
    case '2':
        if (symlinkat(target, tar->dir, path)) return unmade("cannot make a symlink");
        return NULL;
    case '0':
        tar->file = openat(tar->dir, path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
        return tar->file < 0 ? unmade("cannot make a file") : NULL;
    }
    return DAMAGED;
}

static const char *end_member(struct untar *tar) {
    int file = tar->file;
    tar->file = -1;
    return file >= 0 && close(file) ? "cannot write" : NULL;
}

static const char *untar(struct untar *tar, const unsigned char *data, size_t size) {
    while (size) {
        size_t taken;
        const char *wrong = NULL;
        if (tar->left) {
            taken = size < tar->left ? size : (size_t)tar->left;
            for (size_t done = 0; done < taken;) {
                ssize_t wrote = write(tar->file, data + done, taken - done);
                if (wrote < 0 && errno == EINTR) continue;
                if (wrote < 0) return "cannot write";
                done += (size_t)wrote;
            }
            tar->left -= taken;
        } else if (tar->padding) {
            taken = size < tar->padding ? size : (size_t)tar->padding;
            tar->padding -= taken;
        } else {
            taken = size < BLOCK - tar->filled ? size : BLOCK - tar->filled;
            memcpy(tar->header + tar->filled, data, taken);
            tar->filled += taken;
            if (tar->filled == BLOCK) tar->filled = 0, wrong = begin_member(tar);
        }
        if (!wrong && !tar->left && tar->file >= 0) wrong = end_member(tar);
        if (wrong) return wrong;
        data += taken, size -= taken;
    }
    return NULL;
}

/* ---- deflate --------------------------------------------------------------------------------------- */

/* Indexed by the next 15 bits of input: symbol << 4 | length of its code; 0 where no code begins so. */
typedef uint16_t table[1 << MAX_BITS];

struct stream {
    const unsigned char *next, *end;
    uint64_t bits;
    unsigned held;          /* bits held in `bits` */
    unsigned char window[WINDOW];
    uint64_t out;           /* bytes made so far; they stand in the window at `out % WINDOW` */
    uint64_t passed_on;
    uint32_t checksum, crc_table[4][256];
    table literal, distance;
    struct untar tar;
    const char *wrong;
};

static void refill(struct stream *s) {
    while (s->held <= 56 && s->next < s->end) s->bits |= (uint64_t)*s->next++ << s->held, s->held += 8;
}

/* Return the next `count` (at most 16) bits; missing ones are reported at the end of the block. */
static unsigned take(struct stream *s, unsigned count) {
    if (s->held < count) refill(s);
    if (s->held < count) {
        s->wrong = DAMAGED;
        return 0;
    }
    unsigned value = (unsigned)(s->bits & ((1u << count) - 1));
    s->bits >>= count, s->held -= count;
    return value;
}

static int make_table(uint16_t *into, const unsigned char *lengths, unsigned count) {
    unsigned number[MAX_BITS + 2] = {0}, next[MAX_BITS + 2] = {0};
    memset(into, 0, sizeof(table));
    for (unsigned i = 0; i < count; i++) number[lengths[i]]++;
    number[0] = 0;
    for (unsigned bits = 1; bits <= MAX_BITS; bits++) {
        next[bits + 1] = (next[bits] + number[bits]) << 1;
        if (next[bits] + number[bits] > 1u << bits) return 0; /* more codes than there is room for */
    }
    for (unsigned symbol = 0; symbol < count; symbol++) {
        unsigned bits = lengths[symbol], code, mirrored = 0;
        if (!bits) continue;
        code = next[bits]++;
        for (unsigned i = 0; i < bits; i++) mirrored |= (code >> i & 1) << (bits - 1 - i);
        for (; mirrored < 1u << MAX_BITS; mirrored += 1u << bits)
            into[mirrored] = (uint16_t)(symbol << 4 | bits);
    }
    return 1;
}

static unsigned symbol(struct stream *s, const uint16_t *codes) {
    if (s->held < MAX_BITS) refill(s);
    unsigned entry = codes[s->bits & ((1 << MAX_BITS) - 1)], bits = entry & 15;
    if (!bits || bits > s->held) {
        s->wrong = DAMAGED;
        return 0;
    }
    s->bits >>= bits, s->held -= bits;
    return entry >> 4;
}

/* Four bytes at a time: one at a time takes a third of all unpacking. */
static uint32_t checksum(const struct stream *s, uint32_t crc, const unsigned char *data, size_t size) {
    for (; size >= 4; data += 4, size -= 4) {
        crc ^= data[0] | data[1] << 8 | data[2] << 16 | (uint32_t)data[3] << 24;
        crc = s->crc_table[3][crc & 255] ^ s->crc_table[2][crc >> 8 & 255] ^ s->crc_table[1][crc >> 16 & 255] ^
              s->crc_table[0][crc >> 24];
    }
    while (size--) crc = s->crc_table[0][(crc ^ *data++) & 255] ^ crc >> 8;
    return crc;
}

static void make_crc_table(struct stream *s) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int bit = 0; bit < 8; bit++) c = c & 1 ? c >> 1 ^ 0xEDB88320u : c >> 1;
        s->crc_table[0][i] = c;
    }
    for (uint32_t i = 0; i < 256; i++)
        for (int ahead = 1; ahead < 4; ahead++) {
            uint32_t c = s->crc_table[ahead - 1][i];
            s->crc_table[ahead][i] = s->crc_table[0][c & 255] ^ c >> 8;
        }
}

static void pass_on(struct stream *s) {
    while (s->passed_on < s->out && !s->wrong) {
        size_t at = s->passed_on % WINDOW, size = (size_t)(s->out - s->passed_on);
        if (size > WINDOW - at) size = WINDOW - at;
        s->checksum = checksum(s, s->checksum, s->window + at, size);
        s->wrong = untar(&s->tar, s->window + at, size);
        s->passed_on += size;
    }
}

static void put(struct stream *s, unsigned char byte) {
    s->window[s->out++ % WINDOW] = byte;
    if (s->out - s->passed_on >= WINDOW / 2) pass_on(s); /* half stays behind for copies */
}

static void copy(struct stream *s, unsigned length, unsigned distance) {
    if (distance > s->out) {
        s->wrong = DAMAGED;
        return;
    }
    size_t to = s->out % WINDOW, from = (s->out - distance) % WINDOW;
    s->out += length;
    if (distance >= length && to + length <= WINDOW && from + length <= WINDOW)
        memcpy(s->window + to, s->window + from, length);
    else /* it overlaps, so that its end repeats its beginning, or runs over the window's end */
        while (length--) s->window[to++ % WINDOW] = s->window[from++ % WINDOW];
    if (s->out - s->passed_on >= WINDOW / 2) pass_on(s);
}

static void stored_block(struct stream *s) {
    take(s, s->held % 8);
    unsigned size = take(s, 16);
    if ((size ^ take(s, 16)) != 0xFFFF) s->wrong = DAMAGED;
    while (size-- && !s->wrong) put(s, (unsigned char)take(s, 8));
}

static void fixed_codes(struct stream *s) {
    unsigned char lengths[LITERALS];
    for (unsigned i = 0; i < LITERALS; i++) lengths[i] = i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8;
    make_table(s->literal, lengths, LITERALS);
    memset(lengths, 5, DISTANCES);
    make_table(s->distance, lengths, DISTANCES);
}

static void dynamic_codes(struct stream *s) {
    static const unsigned char order[19] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
    unsigned char lengths[LITERALS + DISTANCES] = {0}, meta[19] = {0};
    unsigned literals = take(s, 5) + 257, distances = take(s, 5) + 1, metas = take(s, 4) + 4;
    for (unsigned i = 0; i < metas; i++) meta[order[i]] = (unsigned char)take(s, 3);
    if (literals > LITERALS || !make_table(s->distance, meta, 19)) s->wrong = DAMAGED;
    for (unsigned i = 0; i < literals + distances && !s->wrong;) {
        unsigned code = symbol(s, s->distance), times = 1;
        unsigned char length = (unsigned char)code;
        if (code == 16) length = i ? lengths[i - 1] : 0, times = 3 + take(s, 2);
        if (code == 17) length = 0, times = 3 + take(s, 3);
        if (code == 18) length = 0, times = 11 + take(s, 7);
        if (i + times > literals + distances) {
            s->wrong = DAMAGED;
            return;
        }
        while (times--) lengths[i++] = length;
    }
    if (s->wrong) return;
    if (!make_table(s->literal, lengths, literals)) s->wrong = DAMAGED;
    if (!make_table(s->distance, lengths + literals, distances)) s->wrong = DAMAGED;
}

static void coded_block(struct stream *s) {
    static const uint16_t length_base[] = {3,  4,  5,  6,  7,  8,  9,  10, 11,  13,  15,  17,  19,  23, 27,
                                           31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258};
    static const unsigned char length_bits[] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2,
                                                2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
    while (!s->wrong) {
        unsigned code = symbol(s, s->literal);
        if (code < 256 && !s->wrong) {
            put(s, (unsigned char)code);
            continue;
        }
        if (code == 256 || s->wrong) return;
        if (code > 285) break;
        unsigned length = length_base[code - 257] + take(s, length_bits[code - 257]);
        unsigned far = symbol(s, s->distance);
        if (far > 29) break;
        unsigned more = far < 2 ? 0 : far / 2 - 1;
        unsigned base = far < 2 ? far + 1 : ((2 + far % 2) << more) + 1;
        copy(s, length, base + take(s, more));
    }
    s->wrong = s->wrong ? s->wrong : DAMAGED;
}

static void inflate(struct stream *s) {
    for (unsigned last = 0; !last && !s->wrong;) {
        last = take(s, 1);
        unsigned kind = take(s, 2);
        if (kind == 0) {
            stored_block(s);
        } else if (kind == 1 || kind == 2) {
            kind == 1 ? fixed_codes(s) : dynamic_codes(s);
            coded_block(s);
        } else {
            s->wrong = DAMAGED;
        }
    }
    pass_on(s);
}

/* ---- gzip ------------------------------------------------------------------------------------------ */

enum { GZIP_HEAD = 10, GZIP_TAIL = 8 };

const char *unpack(const unsigned char *data, size_t size, int dir) {
    static struct stream s; /* too large for the stack; this runs once in a process */
    errno = 0;
    if (size < GZIP_HEAD + GZIP_TAIL || memcmp(data, "\x1f\x8b\x08\0", 4)) return DAMAGED;
    s.next = data + GZIP_HEAD, s.end = data + size - GZIP_TAIL;
    s.tar.dir = dir, s.tar.file = -1;
    s.bits = s.held = 0, s.out = s.passed_on = 0, s.wrong = NULL;
    s.tar.filled = 0, s.tar.left = s.tar.padding = 0;
    make_crc_table(&s);
    s.checksum = 0xFFFFFFFFu;
    inflate(&s);
    if (s.tar.file >= 0) close(s.tar.file);
    if (s.wrong) return s.wrong;
    const unsigned char *tail = s.end;
    uint32_t expected = tail[0] | tail[1] << 8 | tail[2] << 16 | (uint32_t)tail[3] << 24;
    errno = 0;
    return expected == (s.checksum ^ 0xFFFFFFFFu) ? NULL : DAMAGED;
}
