/* The log of packets' fates: a thread that brings records from the directions' rings to a file. See fate.h. */
#define _GNU_SOURCE
#include "fate.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define PAUSE_NS 5000000
#define RING_BYTES (NL_FATES * sizeof(struct nl_fate))
#define COUNTERS_OFFSET 16 /* of records, left_out and error in the file's header: netlab/packets.py */

_Static_assert(sizeof(struct nl_fate) == 48, "what netlab/packets.py reads");

/* Write all of it. 0 or an errno. */
static int write_at(int fd, const void *bytes, size_t size, uint64_t offset)
{
    const char *from = bytes;
    while (size) {
        ssize_t done = pwrite(fd, from, size, (off_t)offset);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return done < 0 ? errno : EIO;
        from += done;
        offset += (uint64_t)done;
        size -= (size_t)done;
    }
    return 0;
}

static void keep(struct nl_fate_log *log, const struct nl_fate *from, uint64_t count)
{
    uint64_t room = log->error ? 0 : log->limit - log->records;
    uint64_t kept = count < room ? count : room;
    if (kept) {
        uint64_t at = log->offset + log->records * sizeof *from;
        log->error = (uint64_t)write_at(log->fd, from, kept * sizeof *from, at);
        kept = log->error ? 0 : kept;
    }
    log->records += kept;
    log->left_out += count - kept;
}

static void drain(struct nl_fate_log *log, struct nl_fates *fates)
{
    uint64_t head = __atomic_load_n(&fates->head, __ATOMIC_ACQUIRE);
    while (fates->tail < head) {
        uint64_t start = fates->tail % NL_FATES, count = head - fates->tail;
        if (count > NL_FATES - start)
            count = NL_FATES - start;
        keep(log, &fates->ring[start], count);
        __atomic_store_n(&fates->tail, fates->tail + count, __ATOMIC_RELEASE);
    }
}

/* After every round the header is true, so that a log is readable whenever its writer is killed. */
static void round_of(struct nl_fate_log *log)
{
    uint64_t overrun = 0;
    for (uint32_t i = 0; i < log->count; i++) {
        drain(log, &log->fates[i]);
        overrun += __atomic_load_n(&log->fates[i].left_out, __ATOMIC_RELAXED);
    }
    uint64_t counters[3] = {log->records, log->left_out + overrun, log->error};
    if (counters[0] + counters[1] == log->told)
        return;
    log->told = counters[0] + counters[1];
    if (write_at(log->fd, counters, sizeof counters, COUNTERS_OFFSET) != 0)
        log->told = 0; /* again next time */
}

static void *run_log(void *argument)
{
    struct nl_fate_log *log = argument;
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    while (!__atomic_load_n(&log->stop, __ATOMIC_RELAXED)) {
        nanosleep(&pause, NULL);
        round_of(log);
    }
    return NULL;
}

/* Rings are touched before the first packet comes: no page fault in its way. */
static int make_rings(struct nl_fate_log *log, struct nl_shared *shared)
{
    for (uint32_t i = 0; i < log->count; i++) {
        struct nl_fates *fates = &log->fates[i];
        void *ring = mmap(NULL, RING_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
        if (ring == MAP_FAILED)
            return errno;
        fates->ring = ring;
        fates->direction = (uint16_t)i;
        nl_shared_direction(shared, i)->fates = (uint64_t)(uintptr_t)fates;
    }
    return 0;
}

int nl_fate_log_open(struct nl_fate_log *log, struct nl_shared *shared)
{
    *log = (struct nl_fate_log){.fd = shared->fate_fd, .offset = shared->fate_offset, .limit = shared->fate_limit};
    if (!shared->fate_fd)
        return 0;
    log->fates = calloc(shared->directions, sizeof *log->fates);
    log->count = log->fates ? shared->directions : 0;
    int error = log->fates ? make_rings(log, shared) : ENOMEM;
    if (!error)
        error = pthread_create(&log->thread, NULL, run_log, log);
    log->started = !error;
    return error;
}

void nl_fate_log_close(struct nl_fate_log *log)
{
    if (log->started) {
        __atomic_store_n(&log->stop, 1, __ATOMIC_RELAXED);
        pthread_join(log->thread, NULL);
        round_of(log);
    }
    for (uint32_t i = 0; i < log->count; i++)
        if (log->fates[i].ring)
            munmap(log->fates[i].ring, RING_BYTES);
    free(log->fates);
}
