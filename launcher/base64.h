/* Base64 with the standard alphabet, padded. */
#ifndef BASE64_H
#define BASE64_H

#include <stddef.h>

#include "json.h"

void append_base64(struct buffer *answer, const unsigned char *data, size_t size);

/* Return the bytes that a text stands for, to be freed; NULL if it is not their one canonical spelling. */
unsigned char *decode_base64(const char *text, size_t size, size_t *decoded);

#endif
