/* The file operations that need no rule but the kernel's, for requests as they usually are. */
#ifndef OPERATIONS_H
#define OPERATIONS_H

#include <sys/stat.h>

#include "json.h"
#include "request.h"

enum outcome {
    LEFT,    /* for the other program.  It begins anew: so nothing was changed, or only what it changes again alike */
    DONE,    /* the response is appended */
    REFUSED, /* by the kernel, with nothing changed but what the other program would have; `errno` says why */
};

typedef enum outcome operation(struct buffer *answer, const struct request *request);

operation get_metadata, canonicalize, read_directory, read_file; /* looking.c */
operation write_file, create_directory, remove_path;             /* changing.c */
operation copy;                                                  /* copying.c */

enum { MOST_CONTENT = 1 << 20 }; /* of a file; what takes longer gains nothing here */

/* Return what is in a regular file that was just opened, to be freed; NULL where it is too large or fails. */
unsigned char *read_content(int file, const struct stat *status, size_t *size);

/* Open a regular file for writing, or a new one of that mode, and tell what is there; -1 and `errno`, which is 0 where
 * something else is there. */
int open_target(int folder, const char *name, mode_t mode, struct stat *there);

/* Replace what is in a file that was just opened; 0 where that failed. */
int replace_content(int file, const struct stat *there, const unsigned char *data, size_t size);

/* Make a folder; with `recursive` also those above, and one that is there is fine.  0 and `errno` where it cannot be
 * made; 0 in that for reasons further up. */
int make_folder(const char *path, int recursive);

#endif
