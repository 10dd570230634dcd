/* What Python and the relay process both see: the model's interface and the layout of the shared memory.
 *
 * This file is read twice: by the C compiler, and by cffi (relay_build.py drops the preprocessor lines that cffi does
 * not know). So it holds only plain constants, structs and prototypes.
 *
 * Units are in the names. Times are nanoseconds of CLOCK_MONOTONIC. Sizes called "wire" include framing overhead.
 */
#ifndef NETLAB_ABI_H
#define NETLAB_ABI_H

#include <stddef.h>
#include <stdint.h>

#define NL_ABI_VERSION 1
#define NL_NAME_BYTES 64
#define NL_BUCKETS_PER_OCTAVE 8
#define NL_BUCKETS 320
#define NL_DIRECTIONS_MAX 4096

/* ---- the model of one direction of a link (link.c): pure, no clock, no allocation, no system call ---- */

struct nl_params {
    uint64_t delay_ns;      /* propagation, one way */
    uint64_t rate_bps;      /* 0: no limit */
    uint64_t queue_bytes;   /* wire bytes that may wait for the rate limiter; 0: no limit */
    uint64_t queue_packets; /* the same in packets (of at most one MTU); 0: no limit */
    uint32_t overhead;      /* wire bytes per packet on top of its IP bytes */
    uint32_t min_frame;     /* wire bytes of the smallest packet */
    uint32_t link_header;   /* bytes of each packet that are link-layer header: 0 on TUN, 14 on TAP */
    uint32_t spare;
};

struct nl_packet {
    struct nl_packet *next;
    uint64_t arrival_ns;
    uint64_t release_ns;
    uint64_t cookie;     /* the caller's; the model never reads it */
    uint32_t length;     /* bytes as read from the device, all headers once */
    uint32_t header;     /* of them, the headers that every segment repeats (0 when gso_size is 0) */
    uint32_t gso_size;   /* payload bytes of each segment; 0: not an offloaded unit */
    uint32_t segments;   /* the model's answer: packets that this unit stands for */
    uint32_t wire_bytes; /* the model's answer: what they occupy on the link */
    uint32_t ip_bytes;   /* the model's answer: their IP bytes */
};

enum nl_verdict {
    NL_ACCEPT = 0,
    NL_DROP_QUEUE = 1,
};

struct nl_link {
    struct nl_params params;
    uint64_t free_ns;         /* the transmitter is busy until free_ns + free_rem / rate_bps nanoseconds */
    uint64_t free_rem;        /* in bit-nanoseconds per second: 0 <= free_rem < rate_bps */
    uint64_t last_release_ns; /* releases never run backwards */
    uint64_t prior_release_ns;       /* the same, before the packet in service */
    struct nl_packet *in_service;    /* the packet whose last bit leaves at free_ns, while that is in the future */
    uint32_t service_wire_bytes;     /* of the packet that was last in service */
    uint32_t service_segments;
    struct nl_packet *queue_head, *queue_tail;   /* accepted, not yet started */
    struct nl_packet *flight_head, *flight_tail; /* started: their release times are fixed */
    uint64_t queue_wire_bytes;
    uint64_t queue_packets;
    uint64_t busy_ns; /* time given to serialization so far */
};

void nl_link_init(struct nl_link *link, const struct nl_params *params);
void nl_link_change(struct nl_link *link, const struct nl_params *params, uint64_t now_ns);
int nl_link_offer(struct nl_link *link, struct nl_packet *packet, uint64_t now_ns);
uint64_t nl_link_next(const struct nl_link *link);
struct nl_packet *nl_link_take(struct nl_link *link, uint64_t now_ns);
void nl_link_backlog(const struct nl_link *link, uint64_t now_ns, uint64_t *wire_bytes, uint64_t *packets);
void nl_packet_measure(const struct nl_params *params, struct nl_packet *packet);

/* ---- histogram of non-negative nanoseconds, NL_BUCKETS_PER_OCTAVE buckets per doubling (histogram.h) ---- */

uint32_t nl_bucket_of(uint64_t ns);
uint64_t nl_bucket_upper_ns(uint32_t bucket);

/* ---- shared memory between the relay process and whoever reads it ---- */

enum nl_state {
    NL_STARTING = 0,
    NL_RUNNING = 1,
    NL_ENDED = 2,
};

enum nl_scheduling {
    NL_SCHED_NORMAL = 0,
    NL_SCHED_NICE = 1,
    NL_SCHED_FIFO = 2,
};

struct nl_stats {
    uint64_t packets_in, packets_out; /* segments of offloaded units counted one by one */
    uint64_t units_in, units_out;     /* reads from and writes to the devices */
    uint64_t bytes_in, bytes_out;     /* IP bytes */
    uint64_t wire_bytes_out;
    uint64_t drops_queue;   /* the model's queue was full */
    uint64_t drops_device;  /* lost by the kernel in the device's own queue before we could read them (if stamps) */
    uint64_t drops_memory;  /* no memory left for a packet that the model would have held: the run is not valid */
    uint64_t drops_malformed;  /* shorter than its headers say */
    uint64_t drops_write_busy; /* the out device answered EAGAIN, ENOBUFS or ENOMEM */
    uint64_t drops_write_down; /* EIO: the out device is down */
    uint64_t drops_write_bad;  /* EINVAL: the kernel refused the packet's headers */
    uint64_t drops_write_other;
    uint64_t queue_bytes, queue_packets; /* wire bytes and packets waiting, as of updated_ns */
    uint64_t queue_bytes_peak;
    uint64_t held_bytes_peak; /* memory in use for packets */
    uint64_t busy_ns;         /* time in which the rate limiter was sending */
    uint64_t wakeups;
    uint64_t spin_ns;      /* time spent spinning before a release */
    uint64_t cpu_ns;       /* processor time of the thread */
    uint64_t saturated_ns; /* time in which the thread took nearly all of a processor */
    uint64_t updated_ns;    /* when the thread last wrote these */
    uint64_t lateness_max_ns;
    uint64_t lateness_sum_ns;
    uint64_t lateness[NL_BUCKETS];      /* every unit written: actual write minus release time */
    uint64_t lateness_wake[NL_BUCKETS]; /* of them, the first after each sleep: the cost of waking alone */
};

struct nl_direction {
    char name[NL_NAME_BYTES];
    int32_t in_fd, out_fd, wake_fd;
    uint32_t state;       /* enum nl_state */
    uint32_t scheduling;  /* enum nl_scheduling */
    uint32_t memory_locked;
    uint32_t kernel_stamps; /* arrival times come from the kernel, not from when the packet was read */
    int32_t ended_errno;  /* why the thread ended, 0: it was asked to */
    uint32_t thread_id;
    uint64_t memory_cap_bytes;
    uint64_t memory_start_bytes;
    uint64_t sequence;   /* odd while params is being written */
    uint64_t taken;      /* the sequence whose params are in use */
    uint64_t taken_ns;   /* since when */
    struct nl_params params;
    struct nl_stats stats;
};

struct nl_shared {
    uint32_t abi_version;
    uint32_t directions;
    uint32_t realtime; /* asked for */
    uint32_t spin_cap_ns;   /* wake up at most so long before a release, and spin until it */
    uint32_t spin_permille; /* of a processor, which each thread may spend on that */
    uint32_t stop;
};

size_t nl_shared_bytes(uint32_t directions);
struct nl_direction *nl_shared_direction(struct nl_shared *shared, uint32_t index);
void nl_params_publish(struct nl_direction *direction, const struct nl_params *params, uint64_t memory_cap_bytes);
int nl_params_read(const struct nl_direction *direction, uint64_t *sequence, struct nl_params *params,
                   uint64_t *memory_cap_bytes);
uint64_t nl_params_taken(const struct nl_direction *direction);
void nl_stats_read(const struct nl_direction *direction, struct nl_stats *out);

/* ---- the relay process (relay.c): runs until control_fd is closed at its other end ---- */

int nl_relay_main(int shared_fd, int control_fd);

#endif
