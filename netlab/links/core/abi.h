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

#define NL_ABI_VERSION 3
#define NL_NAME_BYTES 64
#define NL_BUCKETS_PER_OCTAVE 8
#define NL_BUCKETS 320
#define NL_WIRE_BYTES_MAX 536870912
#define NL_STATES_MAX 4
#define NL_MOVES 12
#define NL_CERTAIN 9223372036854775808u
#define NL_JITTER_TABLE 4096
#define NL_JITTER_BINS 1024
#define NL_NO_BIT 4294967295u
#define NL_FATE_IS_COPY 9223372036854775808u

/* ---- the model of one direction of a link (link.c): pure, no clock, no allocation, no system call ---- */

/* A random event that may cluster (chain.c). Probabilities are in units of NL_CERTAIN = 2^63. */
struct nl_chain {
    uint32_t states;               /* 0: never */
    uint32_t move_first;           /* the state moves, then the packet is judged; 0: the other way round */
    uint64_t move[NL_MOVES];       /* from state i to at most state j: move[3 * i + j] */
    uint64_t event[NL_STATES_MAX]; /* probability of the event in each state */
};

struct nl_chain_state {
    uint64_t count; /* packets judged so far */
    uint64_t state;
};

struct nl_params {
    uint64_t delay_ns;      /* propagation, one way */
    uint64_t rate_bps;      /* 0: no limit */
    uint64_t queue_bytes;   /* wire bytes that may wait for the rate limiter; 0: no limit */
    uint64_t queue_packets; /* the same in packets (of at most one MTU); 0: no limit */
    uint32_t overhead;      /* wire bytes per packet on top of its IP bytes */
    uint32_t min_frame;     /* wire bytes of the smallest packet */
    uint32_t link_header;   /* bytes of each packet that are link-layer header: 0 on TUN, 14 on TAP */
    uint32_t full_frame;    /* wire bytes of the largest packet: CoDel leaves that much alone */
    uint32_t down;          /* drop what arrives */
    uint32_t reorder_gap;   /* at most one packet in so many overtakes */
    uint32_t jitter;        /* 0: none; else a number that changes whenever the table does */
    uint32_t jitter_reorder; /* packets may overtake for jitter */
    uint64_t jitter_correlation; /* of neighbouring packets, in units of NL_CERTAIN */
    uint64_t codel_target_ns;
    uint64_t codel_interval_ns; /* 0: no CoDel */
    uint64_t codel_ecn;         /* mark instead of dropping, where the packet allows it */
    uint64_t offload; /* enum nl_offload: what the in device is asked for */
    uint64_t seed;
    struct nl_chain duplicate, loss, corrupt, reorder;
};

enum nl_offload {
    NL_OFFLOAD_AS_IS = 0,
    NL_OFFLOAD_ON = 1,  /* units of up to 64 KB, checksums left open */
    NL_OFFLOAD_OFF = 2, /* packet by packet */
};

struct nl_packet {
    struct nl_packet *next;
    struct nl_packet *child; /* of packets that may overtake (order.c) */
    uint64_t sequence;       /* order of coming */
    uint64_t arrival_ns;
    uint64_t release_ns;
    uint64_t cookie;      /* the caller's; the model never reads it */
    uint32_t length;      /* bytes as read from the device, all headers once */
    uint32_t header;      /* of them, the headers that every segment repeats (0 when gso_size is 0) */
    uint32_t gso_size;    /* payload bytes of each segment; 0: not an offloaded unit */
    uint32_t ecn_capable; /* may be marked */
    uint32_t segments;    /* the model's answer: packets that this unit stands for */
    uint32_t wire_bytes;  /* the model's answer: what they occupy on the link */
    uint32_t ip_bytes;    /* the model's answer: their IP bytes */
    uint32_t corrupt_bit; /* the model's answer: flip this bit of the IP packet; NL_NO_BIT: none */
    uint32_t marked;      /* the model's answer: set "congestion experienced" */
    uint32_t overtakes;   /* the model's answer: it was let past the others */
};

enum nl_verdict {
    NL_ACCEPT = 0,
    NL_DROP_QUEUE = 1,
    NL_DROP_LOSS = 2,
};

/* Deviations of the delay (jitter.c). Positions are in 1/256 ns. */
struct nl_jitter {
    int64_t table[NL_JITTER_TABLE];
    int64_t edge[NL_JITTER_BINS + 1];
    uint64_t density[NL_JITTER_BINS]; /* of uniform density: 65536 */
    uint64_t hull[NL_JITTER_BINS];    /* with one peak, nowhere above the density */
    uint32_t before[NL_JITTER_BINS + 1]; /* cells of the table below each bin */
    uint32_t bins;
    uint32_t top; /* where the hull is highest */
    uint32_t started;
    uint64_t count; /* packets so far */
    uint64_t jumps;
    uint64_t sent_ns; /* of the packet before */
    int64_t position; /* its deviation */
    uint64_t level;
    uint32_t bin;
    uint32_t speed;
    double score; /* normal score of its deviation, if scored */
    uint32_t scored;
    uint32_t unused;
};

struct nl_codel {
    uint64_t above_until_ns; /* since an interval before this, every packet has waited too long; 0: no */
    uint64_t next_drop_ns;
    uint64_t count, last_count;
    uint64_t dropping;
};

struct nl_link {
    struct nl_params params;
    uint64_t free_ns;          /* the transmitter is busy until free_ns + free_rem / rate_bps nanoseconds */
    uint64_t free_rem;         /* in bit-nanoseconds per second: 0 <= free_rem < rate_bps */
    uint64_t last_release_ns;  /* of packets that keep their order: releases never run backwards */
    struct nl_packet *in_service; /* the packet whose last bit leaves at free_ns */
    uint32_t service_wire_bytes;  /* of the packet that was last in service */
    uint32_t service_segments;
    struct nl_packet *queue_head, *queue_tail;     /* accepted, not yet started */
    struct nl_packet *flight_head, *flight_tail;   /* started: their release times are fixed */
    struct nl_packet *loose;                       /* the same, of those that may overtake: the first of a heap */
    struct nl_packet *dropped_head, *dropped_tail; /* by CoDel: to be given back */
    uint64_t queue_wire_bytes;
    uint64_t queue_packets;
    uint64_t busy_ns;  /* time given to serialization so far */
    uint64_t sequence; /* packets sent so far */
    uint64_t since_overtaking;
    struct nl_chain_state duplicate, loss, corrupt, reorder;
    struct nl_codel codel;
    struct nl_jitter jitter;
};

/* jitter is a table of NL_JITTER_TABLE deviations in ns, ascending; it may be NULL where params->jitter is 0, or in
 * nl_link_change is the same number as before. */
void nl_link_init(struct nl_link *link, const struct nl_params *params, const int64_t *jitter);
void nl_link_change(struct nl_link *link, const struct nl_params *params, const int64_t *jitter, uint64_t now_ns);
int nl_link_copies(struct nl_link *link);
int nl_link_offer(struct nl_link *link, struct nl_packet *packet, uint64_t arrival_ns);
uint64_t nl_link_next(const struct nl_link *link);
uint64_t nl_link_least_travel_ns(const struct nl_link *link);
struct nl_packet *nl_link_take(struct nl_link *link, uint64_t now_ns);
struct nl_packet *nl_link_take_dropped(struct nl_link *link);
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

/* What became of a packet (fate.h). */
enum nl_fate_kind {
    NL_FATE_PASSED = 0,
    NL_FATE_QUEUE = 1,     /* dropped: no room in the model's queue */
    NL_FATE_LOSS = 2,      /* dropped: the model's loss */
    NL_FATE_CODEL = 3,     /* dropped: the management of the model's queue */
    NL_FATE_DOWN = 4,      /* dropped: the modelled link was down */
    NL_FATE_MEMORY = 5,    /* not the model's doing, from here on */
    NL_FATE_MALFORMED = 6,
    NL_FATE_REFUSED = 7,   /* by the out device */
    NL_FATE_HELD = 8,      /* under way or waiting when the relay ended */
};

enum nl_fate_flag {
    NL_FATE_MARKED = 1,
    NL_FATE_CORRUPTED = 2,
    NL_FATE_OVERTOOK = 4,
    NL_FATE_COPY = 8,
};

/* A record of the log, as it is in the file. 0 where a time does not apply. */
struct nl_fate {
    uint64_t number; /* the how-manieth read of its direction; a copy has that of its original, 0: never got one */
    uint64_t arrival_ns, release_ns, written_ns;
    uint32_t ip_bytes, wire_bytes;
    uint16_t segments;
    uint16_t direction;
    uint8_t kind, flags;
    uint16_t unused;
};

struct nl_stats {
    uint64_t packets_in, packets_out; /* segments of offloaded units counted one by one */
    uint64_t units_in, units_out;     /* reads from and writes to the devices */
    uint64_t bytes_in, bytes_out;     /* IP bytes */
    uint64_t wire_bytes_out;
    uint64_t drops_queue;   /* the model's queue was full */
    uint64_t drops_codel;   /* the model's queue management */
    uint64_t drops_loss;    /* the model's loss */
    uint64_t drops_down;    /* the modelled link was down */
    uint64_t copies;        /* made by the model: they are not in packets_in */
    uint64_t corrupted;     /* by the model, and so on */
    uint64_t marked;
    uint64_t overtakers;
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
    uint64_t fates;      /* in the relay process only: where its thread notes packets' fates; 0: nowhere */
    uint64_t sequence;   /* odd while params is being written */
    uint64_t taken;      /* the sequence whose params are in use */
    uint64_t taken_ns;   /* since when */
    struct nl_params params;
    int64_t jitter[NL_JITTER_TABLE];
    struct nl_stats stats;
};

struct nl_shared {
    uint32_t abi_version;
    uint32_t directions;
    uint32_t realtime; /* asked for */
    uint32_t spin_cap_ns;   /* wake up at most so long before a release, and spin until it */
    uint32_t spin_permille; /* of a processor, which each thread may spend on that */
    uint32_t stop;
    int32_t fate_fd;        /* file for packets' fates; 0: none */
    uint32_t fate_offset;   /* of its first record */
    uint64_t fate_limit;    /* records */
};

size_t nl_shared_bytes(uint32_t directions);
struct nl_direction *nl_shared_direction(struct nl_shared *shared, uint32_t index);
/* jitter may be NULL where the table stays as it is. */
void nl_params_publish(struct nl_direction *direction, const struct nl_params *params, const int64_t *jitter,
                       uint64_t memory_cap_bytes);
uint64_t nl_params_taken(const struct nl_direction *direction);
void nl_stats_read(const struct nl_direction *direction, struct nl_stats *out);
/* Take the largest value that the counter has seen since it was last taken: queue_bytes_peak or lateness_max_ns. */
uint64_t nl_peak_take(uint64_t *counter);

/* ---- the relay process (relay.c): runs until control_fd is closed at its other end ---- */

int nl_relay_main(int shared_fd, int control_fd);

#endif
