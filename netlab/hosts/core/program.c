/* See program.h. */
#define _GNU_SOURCE
#include "program.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define NOT_FOUND 127

static pid_t group_to_signal; /* in a shepherd: its program */
static const int forwarded[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};

/* ------------------------------------------------------------------------------------------------ the report */

void write_all(int fd, const char *data, size_t size)
{
    while (size > 0) {
        ssize_t done = write(fd, data, size);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return; /* nobody reads it any more */
        data += done;
        size -= (size_t)done;
    }
}

void report_error(int fd, const char *attempt, const char *subject, int number)
{
    char line[1024];
    size_t used = (size_t)snprintf(line, sizeof line, "{\"error\": \"%s '", attempt);
    for (const char *at = subject; *at && used < sizeof line - 300; at++) {
        unsigned char byte = (unsigned char)*at;
        if (byte == '"' || byte == '\\')
            line[used++] = '\\';
        line[used++] = (char)(byte < 0x20 || byte > 0x7e ? '?' : byte);
    }
    used += (size_t)snprintf(line + used, sizeof line - used, "': %s\", \"errno\": %d}\n", strerror(number), number);
    write_all(fd, line, used);
}

static void report_end(int fd, int status)
{
    char line[64];
    int used = WIFSIGNALED(status) ? snprintf(line, sizeof line, "{\"signal\": %d}\n", WTERMSIG(status))
                                   : snprintf(line, sizeof line, "{\"code\": %d}\n", WEXITSTATUS(status));
    write_all(fd, line, (size_t)used);
}

/* ------------------------------------------------------------------------------------------------ one program */

void add_forwarded(sigset_t *set)
{
    for (size_t i = 0; i < sizeof forwarded / sizeof *forwarded; i++)
        sigaddset(set, forwarded[i]);
}

static void forward(int number)
{
    int kept = errno;
    kill(-group_to_signal, number);
    errno = kept;
}

/* Like execvpe, but a file that is no program stays an error: it is not handed to a shell. */
static int execute(char **argv)
{
    extern char **environ;
    const char *name = argv[0], *path = getenv("PATH");
    if (strchr(name, '/') || !*name) {
        execve(name, argv, environ);
        return errno;
    }
    if (!path)
        path = "/usr/local/bin:/usr/bin:/bin";
    int refused = 0;
    for (const char *end; path; path = *end ? end + 1 : NULL) {
        end = strchrnul(path, ':');
        char *file = NULL;
        if (asprintf(&file, "%.*s%s%s", (int)(end - path), path, end == path ? "" : "/", name) < 0)
            return ENOMEM;
        execve(file, argv, environ);
        free(file);
        if (errno == EACCES)
            refused = EACCES;
        else if (errno != ENOENT && errno != ENOTDIR)
            return errno;
    }
    return refused ? refused : ENOENT;
}

static _Noreturn void become_program(char **argv, const char *cwd, int flags)
{
    if (flags & TERMINAL) {
        setsid();
        ioctl(0, TIOCSCTTY, 0);
    } else {
        setpgid(0, 0);
    }
    for (int number = 1; number < NSIG; number++)
        signal(number, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (*cwd && chdir(cwd) < 0) /* none: where the engine started us */
        report_error(3, "cannot enter", cwd, errno);
    else
        report_error(3, "cannot start", argv[0], execute(argv));
    _exit(NOT_FOUND);
}

_Noreturn void shepherd(char **argv, const char *cwd, int flags)
{
    setsid();
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    pid_t child = fork();
    if (child < 0) {
        report_error(3, "cannot start", argv[0], errno);
        _exit(0);
    }
    if (child == 0)
        become_program(argv, cwd, flags);
    if (!(flags & TERMINAL))
        setpgid(child, child); /* both do it: a signal may come before the child has run at all */
    group_to_signal = child;
    for (size_t i = 0; i < sizeof forwarded / sizeof *forwarded; i++)
        signal(forwarded[i], forward);
    signal(SIGCHLD, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL); /* pid 1 blocks what it reads from its signalfd */
    int status = 0;
    for (pid_t pid; (pid = waitpid(-1, &status, 0)) != child;)
        if (pid < 0 && errno != EINTR)
            _exit(1);
    report_end(3, status);
    _exit(0); /* what the program has left running becomes pid 1's child, and pid 1 kills it */
}

void take_streams(const int *streams)
{
    for (int target = 0; target < STREAMS; target++)
        if (dup2(streams[target], target) < 0)
            _exit(1);
    fcntl(3, F_SETFD, FD_CLOEXEC);
    for (int fd = 4; fd < 1024; fd++)
        close(fd);
}

void set_environment(char **variables, int flags)
{
    if (flags & WHOLE_ENVIRONMENT)
        clearenv();
    for (; *variables; variables++)
        putenv(*variables);
}
