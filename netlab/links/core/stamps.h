/* When a packet really reached the device, told by the kernel instead of by when this thread got to read it.
 *
 * A relay that stamps a packet at its read adds its own wake-up time (tens of microseconds idle, milliseconds on a busy
 * machine) to every delay. TUN devices let a small BPF program look at each packet as it is queued (TUNSETFILTEREBPF);
 * ours writes the time into a ring shared with this process and lets the packet pass. Stamps and packets come in the
 * same order, so the n-th stamp is the n-th packet's; but for packets that two processors send at the same moment, which
 * may be queued in the other order than they were stamped in. As a bonus the ring shows packets that the kernel dropped
 * because the device's queue was full, which a reader of the device never sees.
 *
 * Needs CAP_BPF. Without it the read time is used, and that is reported. */
#ifndef NETLAB_STAMPS_H
#define NETLAB_STAMPS_H

#include "abi.h"

#define NL_STAMPS 16384 /* more than the device's queue holds (TX_QUEUE_LENGTH in tun.py) */

struct nl_stamp {
    uint64_t at_ns;
    uint64_t length;
};

#define NL_PASSED 16 /* more than the processors that send at the same moment */

/* What the program and this process share. */
struct nl_stamp_ring {
    uint64_t count; /* packets that the device took, ever */
    uint64_t unused[7];
    struct nl_stamp stamps[NL_STAMPS];
};

struct nl_stamps {
    const struct nl_stamp_ring *ring; /* NULL: no stamps here */
    uint64_t next;                    /* the stamp of the next packet to be read */
    uint64_t last_ns;                 /* the newest stamp handed out: they never run backwards */
    uint64_t owed;                    /* overwritten stamps whose packets have been neither read nor given up */
    struct nl_stamp passed[NL_PASSED]; /* passed over: of packets that are lost, or were overtaken behind the program */
    uint32_t passed_count;
    uint64_t passed_ns; /* when the newest of them was passed over */
    uint64_t lag_least; /* stamps without a packet, seen with the device empty: the least of late */
    uint64_t lag_since_ns;
    uint32_t lag_seen;
};

/* Load the program and attach it to the device. 0, or -1 with errno set: carry on without. */
int nl_stamps_open(struct nl_stamps *stamps, int device_fd);
void nl_stamps_close(struct nl_stamps *stamps);

/* The arrival time of the packet that was just read; read_ns where there is no stamp for it. Packets that got lost
 * before it are added to *lost. */
uint64_t nl_stamps_take(struct nl_stamps *stamps, uint64_t length, uint64_t read_ns, uint64_t *lost);

/* The device is empty: returns how many stamped packets never came. */
uint64_t nl_stamps_settle(struct nl_stamps *stamps, uint64_t now_ns);

#endif
