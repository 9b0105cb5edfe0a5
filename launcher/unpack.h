/* Unpacking a gzip-compressed tar archive from memory into a folder. */
#ifndef UNPACK_H
#define UNPACK_H

#include <stddef.h>

/* Write every file, folder and symlink of the archive below the folder `dir` is open on.
 * Returns NULL, or what went wrong; errno tells more when it is not 0. */
const char *unpack(const unsigned char *data, size_t size, int dir);

#endif
