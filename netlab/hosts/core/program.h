/* One program of a container: the shepherd that starts it, passes signals on and reports how it ended. */
#ifndef NETLAB_PROGRAM_H
#define NETLAB_PROGRAM_H

#include <signal.h>
#include <stddef.h>

enum { TERMINAL = 1, WHOLE_ENVIRONMENT = 2 }; /* flags of a START message */

#define STREAMS 4 /* stdin, stdout, stderr and the report pipe */

/* Move the received descriptors to 0-3 and close every other. They are all above 3: pid 1 keeps 0-3 open. */
void take_streams(const int *streams);

/* Take over NAME=VALUE strings, on top of what there is unless the flags say otherwise. */
void set_environment(char **variables, int flags);

/* The parent of one program, whose descriptors are 0, 1, 2 and, for the report, 3. */
_Noreturn void shepherd(char **argv, const char *cwd, int flags);

/* Add the signals that a shepherd passes on; its parent blocks them until the shepherd is ready. */
void add_forwarded(sigset_t *set);

/* One line: {"error": "cannot start 'x': No such file or directory", "errno": 2}, in plain ASCII. */
void report_error(int fd, const char *attempt, const char *subject, int number);

void write_all(int fd, const char *data, size_t size);

#endif
