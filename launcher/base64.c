#include "base64.h"

#include <stdlib.h>
#include <string.h>

static const char DIGITS[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void append_base64(struct buffer *answer, const unsigned char *data, size_t size) {
    char digits[4096];
    size_t made = 0;
    for (size_t at = 0; at < size; at += 3) {
        size_t left = size - at;
        unsigned group = data[at] << 16 | (left > 1 ? data[at + 1] << 8 : 0) | (left > 2 ? data[at + 2] : 0);
        digits[made++] = DIGITS[group >> 18];
        digits[made++] = DIGITS[group >> 12 & 63];
        digits[made++] = left > 1 ? DIGITS[group >> 6 & 63] : '=';
        digits[made++] = left > 2 ? DIGITS[group & 63] : '=';
        if (made < sizeof digits) continue;
        append(answer, digits, made);
        made = 0;
    }
    append(answer, digits, made);
}

unsigned char *decode_base64(const char *text, size_t size, size_t *decoded) {
    signed char values[256];
    size_t pads = size && text[size - 1] == '=' ? 1 + (size > 1 && text[size - 2] == '=') : 0;
    unsigned char *made = size % 4 ? NULL : malloc(size / 4 * 3 + 1), *to = made;
    unsigned group = 0;
    if (!made) return NULL;
    memset(values, -1, sizeof values);
    for (int digit = 0; digit < 64; digit++) values[(unsigned char)DIGITS[digit]] = (signed char)digit;
    for (size_t at = 0; at < size; at++) {
        int value = at < size - pads ? values[(unsigned char)text[at]] : 0;
        if (value < 0) return free(made), NULL;
        group = group << 6 | (unsigned)value;
        if (at % 4 < 3) continue;
        *to++ = (unsigned char)(group >> 16);
        *to++ = (unsigned char)(group >> 8);
        *to++ = (unsigned char)group;
    }
    *decoded = size / 4 * 3 - pads;
    /* Bits of the last digit that belong to no byte: a second spelling of the same bytes. */
    if (pads && group & (pads == 2 ? 0xffff : 0xff)) return free(made), NULL;
    return made;
}
