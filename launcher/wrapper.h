/* codex-execve-wrapper: what a patched shell starts in place of every program. */
#ifndef WRAPPER_H
#define WRAPPER_H

/* Tell whether this program was called by the wrapper's name. */
int is_wrapper(int argc, char **argv);

/* Ask, and act as answered; returns the exit status, unless this process becomes the program. */
int be_wrapper(int argc, char **argv);

#endif
