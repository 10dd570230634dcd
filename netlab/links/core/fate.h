/* What became of every packet, noted for whoever asks: one fixed-size record each (struct nl_fate in abi.h).
 *
 * Each direction's thread writes into a ring of its own: a few stores, no lock, no system call. A thread of normal
 * priority (fatelog.c) brings records from the rings to the file. A ring that is full, and a file that has reached its
 * limit, let records go and count them. Without a log, a packet costs one comparison. */
#ifndef NETLAB_FATE_H
#define NETLAB_FATE_H

#include "abi.h"

#include <pthread.h>

#define NL_FATES 32768 /* a power of two: at 250,000 packets a second, 130 ms */

struct nl_fates {
    struct nl_fate *ring;
    uint64_t head; /* records written so far: by the direction's thread */
    uint64_t tail; /* of them, taken: by the log's thread */
    uint64_t left_out;
    uint16_t direction;
};

void nl_fate_put(struct nl_fates *fates, const struct nl_packet *packet, enum nl_fate_kind kind, uint64_t written_ns);

static inline void nl_fate_note(struct nl_fates *fates, const struct nl_packet *packet, enum nl_fate_kind kind,
                                uint64_t written_ns)
{
    if (fates)
        nl_fate_put(fates, packet, kind, written_ns);
}

/* Of a packet of which only its length and when it came are known. */
static inline void nl_fate_note_unread(struct nl_fates *fates, uint32_t length, uint64_t arrival_ns,
                                       enum nl_fate_kind kind)
{
    struct nl_packet packet = {.length = length, .ip_bytes = length, .segments = 1, .arrival_ns = arrival_ns,
                               .corrupt_bit = NL_NO_BIT};
    nl_fate_note(fates, &packet, kind, 0);
}

struct nl_fate_log {
    pthread_t thread;
    struct nl_fates *fates; /* one per direction; NULL: there is no log */
    uint32_t count;
    int fd;
    uint64_t offset; /* of the first record in the file */
    uint64_t limit;
    uint64_t records, left_out, error; /* as in the file's header */
    uint64_t told;
    int started;
    int stop;
};

/* Make a ring for each direction if shared->fate_fd asks for it, and tell the directions. 0 or an errno. */
int nl_fate_log_open(struct nl_fate_log *log, struct nl_shared *shared);
/* Bring what is in the rings to the file; the direction's threads must have ended before. */
void nl_fate_log_close(struct nl_fate_log *log);

#endif
