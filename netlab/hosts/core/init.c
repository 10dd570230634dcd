/* netlab-init: pid 1 of a worker's container. Starts programs there for the lab's keeper and ends with it.
 *
 *   netlab-init listen SECONDS     wait that long for the one who starts the lab, on the abstract socket "netlab" of
 *                                  the container's own network namespace, which nobody outside can reach without
 *                                  entering it; end when that connection closes
 *   netlab-init connect PATH NAME  (compose files) connect to the keeper's socket as the worker NAME, for as long as
 *                                  the container lives: when a lab ends, everything it started is killed and the next
 *                                  one is waited for
 *
 * The connection is what holds a container alive: whoever started the lab may be killed at any moment, the kernel
 * closes its descriptors, this process ends, and with pid 1 the kernel ends everything in the container.
 *
 * Statically linked, so that it runs in any image, and without a privilege: programs get the descriptors of their
 * standard streams over the connection, so what they print never passes through the engine. Each program has a
 * shepherd, a child of ours which is its subreaper: it reports how the program ended and then kills whatever the
 * program left running. netlab/hosts/container.py holds the other end and states the same message format.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "program.h"

#define VERSION 1
#define ABSTRACT_NAME "netlab"
#define MAX_MESSAGE (64u << 20)
#define RETRY_MS 50

enum { START = 1, SIGNAL = 2 };

struct header {
    uint32_t size;  /* bytes that follow this header */
    uint32_t kind;  /* START or SIGNAL */
    uint32_t id;    /* the keeper's name for the program, never used twice */
    uint32_t value; /* START: flags; SIGNAL: the signal's number */
};

/* START: what follows the header and these two counts is cwd, argv and NAME=VALUE strings, each with its NUL. */
struct counts {
    uint32_t arguments;
    uint32_t variables;
};

struct program {
    uint32_t id;
    pid_t shepherd;
    struct program *next;
};

static struct program *programs;

static void die(const char *what)
{
    fprintf(stderr, "netlab-init: %s: %s\n", what, strerror(errno));
    _exit(1);
}

/* ------------------------------------------------------------------------------------------------ processes */

static pid_t parent_of(const char *pid)
{
    char path[300], text[512];
    snprintf(path, sizeof path, "/proc/%s/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t size = read(fd, text, sizeof text - 1);
    close(fd);
    if (size <= 0)
        return -1;
    text[size] = '\0';
    const char *end = strrchr(text, ')'); /* a program may put anything into its name */
    int parent = -1;
    if (!end || sscanf(end + 1, " %*c %d", &parent) != 1)
        return -1;
    return parent;
}

static int is_shepherd(pid_t pid)
{
    for (struct program *each = programs; each; each = each->next)
        if (each->shepherd == pid)
            return 1;
    return 0;
}

/* SIGKILL to every child of ours that is no shepherd: what programs have left behind. */
static void kill_children(void)
{
    DIR *proc = opendir("/proc");
    if (!proc)
        return;
    for (struct dirent *entry; (entry = readdir(proc));) {
        if (!isdigit((unsigned char)entry->d_name[0]))
            continue;
        pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);
        if (!is_shepherd(pid) && parent_of(entry->d_name) == getpid())
            kill(pid, SIGKILL);
    }
    closedir(proc);
}

/* ------------------------------------------------------------------------------------------------ requests */

static int read_exactly(int fd, void *to, size_t size)
{
    for (char *at = to; size > 0;) {
        ssize_t got = read(fd, at, size);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return -1;
        at += got;
        size -= (size_t)got;
    }
    return 0;
}

static int read_header(int fd, struct header *header, int *streams)
{
    union {
        char bytes[CMSG_SPACE(STREAMS * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec into = {header, sizeof *header};
    struct msghdr message = {.msg_iov = &into, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t got;
    do
        got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
    while (got < 0 && errno == EINTR);
    if (got <= 0 || read_exactly(fd, (char *)header + got, sizeof *header - (size_t)got) < 0)
        return -1;
    for (int i = 0; i < STREAMS; i++)
        streams[i] = -1;
    for (struct cmsghdr *part = CMSG_FIRSTHDR(&message); part; part = CMSG_NXTHDR(&message, part))
        if (part->cmsg_level == SOL_SOCKET && part->cmsg_type == SCM_RIGHTS)
            memcpy(streams, CMSG_DATA(part), part->cmsg_len - CMSG_LEN(0));
    return 0;
}

/* The next string of a START message, or NULL when there is none left. */
static char *next_string(char **at, const char *end)
{
    char *start = *at, *nul = start < end ? memchr(start, '\0', (size_t)(end - start)) : NULL;
    if (nul)
        *at = nul + 1;
    return nul ? start : NULL;
}

/* A NULL-terminated vector of the next `count` strings, or NULL. */
static char **next_strings(char **at, const char *end, uint32_t count)
{
    if (count > MAX_MESSAGE / sizeof(char *))
        return NULL;
    char **vector = calloc((size_t)count + 1, sizeof *vector);
    for (uint32_t i = 0; vector && i < count; i++)
        if (!(vector[i] = next_string(at, end)))
            return NULL;
    return vector;
}

static _Noreturn void start_in_child(char *body, uint32_t size, uint32_t flags, const int *streams)
{
    struct counts counts;
    char *at = body + sizeof counts, *end = body + size;
    memcpy(&counts, body, sizeof counts);
    char *cwd = next_string(&at, end);
    char **argv = next_strings(&at, end, counts.arguments), **variables = next_strings(&at, end, counts.variables);
    if (!cwd || !argv || !argv[0] || !variables)
        _exit(1); /* not a message of ours; the closing report pipe tells */
    take_streams(streams);
    set_environment(variables, (int)flags);
    shepherd(argv, cwd, (int)flags);
}

static int start(int fd, const struct header *header, const int *streams)
{
    char *body = header->size <= MAX_MESSAGE && header->size >= sizeof(struct counts) ? malloc(header->size) : NULL;
    if (!body || read_exactly(fd, body, header->size) < 0)
        return -1;
    struct program *made = malloc(sizeof *made);
    pid_t pid = made && streams[STREAMS - 1] >= 0 ? fork() : -1;
    if (pid == 0)
        start_in_child(body, header->size, header->value, streams);
    if (pid < 0 && streams[STREAMS - 1] >= 0)
        report_error(streams[STREAMS - 1], "cannot start", "a process", errno);
    for (int i = 0; i < STREAMS; i++)
        close(streams[i]);
    free(body);
    if (pid < 0) {
        free(made);
        return 0;
    }
    *made = (struct program){header->id, pid, programs};
    programs = made;
    return 0;
}

/* SIGKILL takes the shepherd; what it leaves becomes our child and is killed then. */
static void deliver(const struct header *header)
{
    for (struct program *each = programs; each; each = each->next)
        if (each->id == header->id)
            kill(each->shepherd, (int)header->value);
}

static int answer(int fd)
{
    struct header header;
    int streams[STREAMS];
    if (read_header(fd, &header, streams) < 0)
        return -1;
    if (header.kind == START)
        return start(fd, &header, streams);
    if (header.kind == SIGNAL && header.size == 0)
        deliver(&header);
    return header.kind == SIGNAL && header.size == 0 ? 0 : -1;
}

/* ------------------------------------------------------------------------------------------------ the loop */

static void forget(pid_t shepherd_pid)
{
    for (struct program **at = &programs; *at; at = &(*at)->next)
        if ((*at)->shepherd == shepherd_pid) {
            struct program *gone = *at;
            *at = gone->next;
            free(gone);
            return;
        }
}

/* Collect ended children and kill orphans. With no program left, kill(-1) does so in one step that no fork can outrun. */
static void reap(void)
{
    int collected = 0;
    for (pid_t pid; (pid = waitpid(-1, NULL, WNOHANG)) > 0; collected = 1)
        forget(pid);
    if (!collected)
        return;
    if (programs)
        kill_children();
    else
        kill(-1, SIGKILL);
}

/* End everything that was started. */
static void end_all(void)
{
    kill(-1, SIGKILL);
    while (waitpid(-1, NULL, 0) > 0 || errno == EINTR)
        ;
    while (programs)
        forget(programs->shepherd);
}

/* Wait until `fd` (or nothing: -1) is readable or `timeout` has passed, meanwhile collecting children. SIGTERM and
 * SIGINT are the engine's way to stop a container: end at once, and with us everything else. */
static int wait_for(int fd, int signals, int timeout)
{
    struct pollfd ready[2] = {{signals, POLLIN, 0}, {fd, POLLIN, 0}};
    int count = poll(ready, fd < 0 ? 1 : 2, timeout);
    if (count < 0 && errno != EINTR)
        die("poll");
    if (count > 0 && ready[0].revents) {
        struct signalfd_siginfo info;
        while (read(signals, &info, sizeof info) == sizeof info)
            if (info.ssi_signo != SIGCHLD)
                _exit(128 + (int)info.ssi_signo);
        reap();
    }
    return count > 0 && fd >= 0 && ready[1].revents;
}

static void serve(int fd, int signals)
{
    for (;;)
        if (wait_for(fd, signals, -1) && answer(fd) < 0)
            return;
}

static void greet(int fd, const char *name)
{
    char line[128];
    int size = snprintf(line, sizeof line, "netlab-init %d %s\n", VERSION, name);
    write_all(fd, line, (size_t)size);
}

static int listen_once(int signals, int seconds)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path + 1, ABSTRACT_NAME, sizeof ABSTRACT_NAME - 1);
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + sizeof ABSTRACT_NAME);
    int listening = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listening < 0 || bind(listening, (struct sockaddr *)&address, size) < 0 || listen(listening, 1) < 0)
        die("cannot listen for the lab");
    struct timespec now, end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    for (end.tv_sec += seconds; !wait_for(listening, signals, 1000);) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (now.tv_sec >= end.tv_sec) {
            fprintf(stderr, "netlab-init: nobody came for %d s\n", seconds);
            _exit(1);
        }
    }
    int fd = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
    close(listening);
    return fd;
}

static int connect_to(const char *path, int signals)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path) {
        errno = ENAMETOOLONG;
        die(path);
    }
    strcpy(address.sun_path, path);
    for (;;) {
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0)
            die("socket");
        if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
            return fd;
        close(fd);
        wait_for(-1, signals, RETRY_MS);
    }
}

/* The signals that arrive by descriptor; blocked everywhere else, also in a shepherd until it is ready for them. */
static int open_signals(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    int fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    add_forwarded(&set);
    if (fd < 0 || sigprocmask(SIG_SETMASK, &set, NULL) < 0)
        die("signals");
    signal(SIGPIPE, SIG_IGN);
    return fd;
}

int main(int count, char **arguments)
{
    int listens = count == 3 && strcmp(arguments[1], "listen") == 0;
    int connects = count == 4 && strcmp(arguments[1], "connect") == 0;
    if (!listens && !connects) {
        fprintf(stderr, "usage: netlab-init listen SECONDS | connect PATH NAME\n");
        return 2;
    }
    if (getpid() != 1) {
        fprintf(stderr, "netlab-init: must be pid 1 of a container: it kills what runs beside it\n");
        return 2;
    }
    for (int fd; (fd = open("/dev/null", O_RDWR)) >= 0;)
        if (fd > 3) { /* 0-3 are taken now, by what the engine gave us or by this */
            close(fd);
            break;
        }
    prctl(PR_SET_DUMPABLE, 0); /* a program of the same user cannot attach to us */
    int signals = open_signals();
    if (listens) {
        int fd = listen_once(signals, atoi(arguments[2]));
        greet(fd, "-");
        serve(fd, signals);
        _exit(0);
    }
    for (;;) {
        int fd = connect_to(arguments[2], signals);
        greet(fd, arguments[3]);
        serve(fd, signals);
        close(fd);
        end_all();
    }
}
