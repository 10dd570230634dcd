/* Traffic between a lab's workers, and what arrives of it: streams.py compiles this and runs it there.
 *
 *   traffic send ADDRESS PORT COUNT GAP_NS IP_BYTES
 *       numbered, time-stamped datagrams, one every GAP_NS
 *   traffic flood ADDRESS PORT SECONDS IP_BYTES RATE_BPS BATCH SMOOTH
 *       BATCH datagrams at a time, as one unit; RATE_BPS of IP bytes; SMOOTH 1: late ones are left out, 0: they follow
 *   traffic receive PORT QUIET_MS FILE
 *       until it stays quiet so long; FILE: (number, sent, received) of each datagram, 64 bits each
 *   traffic sink PORT SECONDS
 *       takes the port and reads nothing
 *   traffic tcp-send ADDRESS PORT
 *       one connection, as much as it takes, until the other end closes it
 *   traffic tcp-receive PORT SKIP_S SECONDS FILE
 *       SECONDS of it after SKIP_S; FILE: the bits per second that were read, as text
 *
 * Times are ns of CLOCK_REALTIME, which all namespaces of a machine share: of sending just before the system call, of
 * arrival the kernel's own. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/udp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define SECOND_NS 1000000000u
#define HEADERS 28
#define LARGEST 65536
#define BATCH_MOST 64
#define BUFFER_BYTES (256 << 20)

struct record {
    uint64_t number;
    int64_t sent_ns, received_ns;
};

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static int64_t now_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * SECOND_NS + t.tv_nsec;
}

static void sleep_until(int64_t at_ns)
{
    struct timespec t = {.tv_sec = at_ns / SECOND_NS, .tv_nsec = at_ns % SECOND_NS};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
        ;
}

static int new_socket(int kind)
{
    int fd = socket(AF_INET, kind, 0);
    if (fd < 0)
        fail("socket");
    return fd;
}

static int connected(const char *address, const char *port)
{
    int fd = new_socket(SOCK_DGRAM), large = 16 << 20;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
    if (inet_pton(AF_INET, address, &to.sin_addr) != 1 || connect(fd, (struct sockaddr *)&to, sizeof to) != 0)
        fail(address);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &large, sizeof large);
    return fd;
}

static int bound(const char *port, int buffer_bytes)
{
    int fd = new_socket(SOCK_DGRAM), on = 1;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
    setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &buffer_bytes, sizeof buffer_bytes);
    setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on);
    if (bind(fd, (struct sockaddr *)&at, sizeof at) != 0)
        fail("bind");
    return fd;
}

static int send_stream(char **argv)
{
    int fd = connected(argv[0], argv[1]);
    uint64_t count = strtoull(argv[2], NULL, 10);
    int64_t gap_ns = atoll(argv[3]), start_ns = now_ns(CLOCK_MONOTONIC);
    size_t payload = (size_t)atoi(argv[4]) - HEADERS;
    static char bytes[LARGEST];
    for (uint64_t number = 0; number < count; number++) {
        sleep_until(start_ns + (int64_t)number * gap_ns);
        struct record stamp = {.number = number, .sent_ns = now_ns(CLOCK_REALTIME)};
        memcpy(bytes, &stamp, 16);
        if (send(fd, bytes, payload, 0) < 0 && errno != ECONNREFUSED && errno != ENOBUFS)
            fail("send");
    }
    return 0;
}

static int send_flood(char **argv)
{
    int fd = connected(argv[0], argv[1]), batch = atoi(argv[5]), smooth = atoi(argv[6]);
    int64_t start_ns = now_ns(CLOCK_MONOTONIC), end_ns = start_ns + (int64_t)(atof(argv[2]) * SECOND_NS);
    int payload = atoi(argv[3]) - HEADERS;
    int64_t step_ns = (int64_t)(8e9 * (payload + HEADERS) * batch / atof(argv[4]));
    static char bytes[LARGEST];
    if (batch > 1 && setsockopt(fd, IPPROTO_UDP, UDP_SEGMENT, &payload, sizeof payload) != 0)
        fail("UDP_SEGMENT");
    for (int64_t at_ns = start_ns; at_ns < end_ns; at_ns += step_ns) {
        sleep_until(at_ns);
        if (send(fd, bytes, (size_t)payload * (size_t)batch, 0) < 0 && errno != ECONNREFUSED && errno != ENOBUFS)
            fail("send");
        int64_t late_ns = now_ns(CLOCK_MONOTONIC) - at_ns;
        if (smooth && late_ns > step_ns)
            at_ns += late_ns - step_ns; /* what a stalled machine did not send is not made up for: that would queue */
    }
    return 0;
}

static void add(struct record **records, size_t *count, size_t *room, const struct record *record)
{
    if (*count == *room) {
        *room = *room ? 2 * *room : 1 << 16;
        *records = realloc(*records, *room * sizeof **records);
        if (!*records)
            fail("memory");
    }
    (*records)[(*count)++] = *record;
}

static int64_t stamp_of(struct msghdr *message)
{
    struct timespec t = {0};
    for (struct cmsghdr *part = CMSG_FIRSTHDR(message); part; part = CMSG_NXTHDR(message, part))
        if (part->cmsg_level == SOL_SOCKET && part->cmsg_type == SO_TIMESTAMPNS)
            memcpy(&t, CMSG_DATA(part), sizeof t);
    return (int64_t)t.tv_sec * SECOND_NS + t.tv_nsec;
}

/* Some datagrams, at least one; 0: none came in time. */
static int receive_some(int fd, struct mmsghdr *messages, struct record *stamps)
{
    static char control[BATCH_MOST][64];
    static struct iovec parts[BATCH_MOST];
    for (int i = 0; i < BATCH_MOST; i++) {
        parts[i] = (struct iovec){&stamps[i], 16};
        messages[i].msg_hdr = (struct msghdr){
            .msg_iov = &parts[i], .msg_iovlen = 1, .msg_control = control[i], .msg_controllen = sizeof control[i]};
    }
    int got = recvmmsg(fd, messages, BATCH_MOST, MSG_WAITFORONE, NULL);
    if (got < 0 && errno != EAGAIN && errno != EINTR)
        fail("recvmmsg");
    return got < 0 ? 0 : got;
}

static int receive_stream(char **argv)
{
    int fd = bound(argv[0], BUFFER_BYTES);
    int64_t quiet_ms = atoll(argv[1]);
    struct timeval first = {.tv_sec = 10}, quiet = {quiet_ms / 1000, quiet_ms % 1000 * 1000};
    struct mmsghdr messages[BATCH_MOST];
    struct record stamps[BATCH_MOST], *records = NULL;
    size_t count = 0, room = 0;
    int got;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &first, sizeof first);
    while ((got = receive_some(fd, messages, stamps)) > 0) {
        if (!count)
            setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &quiet, sizeof quiet);
        for (int i = 0; i < got; i++) {
            stamps[i].received_ns = stamp_of(&messages[i].msg_hdr);
            add(&records, &count, &room, &stamps[i]);
        }
    }
    FILE *file = fopen(argv[2], "w");
    if (!file || fwrite(records, sizeof *records, count, file) != count || fclose(file) != 0)
        fail(argv[2]);
    return 0;
}

static int sink(char **argv)
{
    bound(argv[0], 0);
    usleep((useconds_t)(atof(argv[1]) * 1e6));
    return 0;
}

static int tcp_send(char **argv)
{
    static char bytes[LARGEST];
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[1]))};
    int fd = new_socket(SOCK_STREAM);
    inet_pton(AF_INET, argv[0], &to.sin_addr);
    if (connect(fd, (struct sockaddr *)&to, sizeof to) != 0)
        fail("connect");
    while (send(fd, bytes, sizeof bytes, MSG_NOSIGNAL) > 0)
        ;
    return 0;
}

/* Read for so long; how many bytes, and when the last of them came. */
static uint64_t drain(int fd, int64_t end_ns, int64_t *last_ns)
{
    static char bytes[1 << 20];
    uint64_t total = 0;
    while (now_ns(CLOCK_MONOTONIC) < end_ns) {
        ssize_t got = recv(fd, bytes, sizeof bytes, 0);
        if (got <= 0)
            fail("recv");
        *last_ns = now_ns(CLOCK_MONOTONIC);
        total += (uint64_t)got;
    }
    return total;
}

static int tcp_receive(char **argv)
{
    int listener = new_socket(SOCK_STREAM);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[0]))};
    if (bind(listener, (struct sockaddr *)&at, sizeof at) != 0 || listen(listener, 1) != 0)
        fail("listen");
    alarm(120);
    int fd = accept(listener, NULL, NULL);
    int64_t from_ns = now_ns(CLOCK_MONOTONIC), to_ns;
    drain(fd, from_ns + (int64_t)(atof(argv[1]) * SECOND_NS), &from_ns);
    uint64_t got = drain(fd, from_ns + (int64_t)(atof(argv[2]) * SECOND_NS), &to_ns);
    FILE *file = fopen(argv[3], "w");
    if (!file || fprintf(file, "%.0f\n", 8e9 * (double)got / (double)(to_ns - from_ns)) < 0 || fclose(file) != 0)
        fail(argv[3]);
    return 0;
}

int main(int argc, char **argv)
{
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    if (argc == 7 && !strcmp(argv[1], "send"))
        return send_stream(argv + 2);
    if (argc == 9 && !strcmp(argv[1], "flood"))
        return send_flood(argv + 2);
    if (argc == 5 && !strcmp(argv[1], "receive"))
        return receive_stream(argv + 2);
    if (argc == 4 && !strcmp(argv[1], "sink"))
        return sink(argv + 2);
    if (argc == 4 && !strcmp(argv[1], "tcp-send"))
        return tcp_send(argv + 2);
    if (argc == 6 && !strcmp(argv[1], "tcp-receive"))
        return tcp_receive(argv + 2);
    fprintf(stderr, "traffic: see the comment at its beginning\n");
    return 2;
}
