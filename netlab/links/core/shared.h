/* The memory that the relay process shares with whoever steers and watches it: see shared.c. */
#ifndef NETLAB_SHARED_H
#define NETLAB_SHARED_H

#include "abi.h"

/* What a thread takes over when its parameters change. */
struct nl_setting {
    uint64_t sequence;
    uint64_t memory_cap_bytes;
    struct nl_params params;
    int64_t jitter[NL_JITTER_TABLE];
};

/* Whether there is something newer than the given sequence. */
int nl_setting_changed(const struct nl_direction *direction, uint64_t sequence);

/* 1, or 0 while the writer is at it (it wakes the reader once more). */
int nl_setting_read(const struct nl_direction *direction, struct nl_setting *setting);

#endif
