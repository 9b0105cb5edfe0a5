/* The file operations that need no rule but the kernel's, for requests as they usually are. */
#ifndef OPERATIONS_H
#define OPERATIONS_H

#include <sys/stat.h>

#include "json.h"
#include "request.h"

/* Perform a request and append the response; 0 where the other program is to do it.  It begins anew: so nothing
 * was changed, or only what it changes again, with the same outcome. */
typedef int operation(struct buffer *answer, const struct request *request);

operation get_metadata, canonicalize, read_directory, read_file; /* looking.c */
operation write_file, create_directory, remove_path;             /* changing.c */

enum { MOST_CONTENT = 1 << 20 }; /* of a file; what takes longer gains nothing here */

/* Return what is in a regular file that was just opened, to be freed; NULL where it is too large or fails. */
unsigned char *read_content(int file, const struct stat *status, size_t *size);

/* Open a regular file for writing, or a new one of that mode, and tell what is there; -1 where that is not usual. */
int open_target(const char *path, mode_t mode, struct stat *there);

/* Replace what is in a file that was just opened; 0 where that failed. */
int replace_content(int file, const struct stat *there, const unsigned char *data, size_t size);

#endif
