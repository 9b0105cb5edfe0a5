/* File requests that are answered without the tree: `codex-fs`, where it only looks and nothing is unusual. */
#ifndef PLAIN_H
#define PLAIN_H

/* Tell whether this is one file request, in a process of its own, as the sandboxes of other programs start it. */
int is_file_helper(int argc, char **argv);

/* Answer the request on stdin; returns the exit status, or -1 where the program in the tree is to answer.
 * That program then finds what was read of the request in the descriptor that an environment variable names. */
int answer_plainly(void);

#endif
