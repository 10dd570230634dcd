/* One direction of a link, carried: see pump.h.
 *
 * The loop writes what is due, reads what has come, and sleeps in ppoll until either may happen. Only this thread
 * touches its packets and its model, so the path of a packet takes no lock: parameters come in through a sequence lock
 * in shared memory, counters go out through the same memory.
 */
#define _GNU_SOURCE
#include "pump.h"
#include "store.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SECOND_NS 1000000000u
#define LONG_SLEEP_NS (10 * (uint64_t)SECOND_NS)
#define CPU_CLOCK_EVERY_NS 5000000u
#define READ_BATCH 64

/* The virtio-net header ends where a cache line ends, so that the packet itself starts aligned. */
#define OFFLOAD_BYTES sizeof(struct virtio_net_hdr)
#define OFFLOAD_OFFSET (128 - OFFLOAD_BYTES)
#define LARGEST_READ (OFFLOAD_BYTES + 65536 + 64)

struct record {
    struct nl_packet packet;
    struct nl_chunk *chunk;
};
_Static_assert(sizeof(struct record) <= OFFLOAD_OFFSET, "the offload header does not overlap the record");

struct pump {
    struct nl_shared *shared;
    struct nl_direction *direction;
    struct nl_stats *stats;
    struct nl_link link;
    struct nl_store store;
    uint64_t sequence;       /* of the parameters in use */
    uint64_t cpu_checked_ns; /* when the thread's processor time was last read */
    int woken;               /* the next write is the first after a sleep */
    int ended;
};

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * SECOND_NS + (uint64_t)t.tv_nsec;
}

static uint64_t now_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

/* Counters have one writer, this thread; the store is atomic so that a reader never sees half a number. */
static void add(uint64_t *counter, uint64_t amount)
{
    __atomic_store_n(counter, *counter + amount, __ATOMIC_RELAXED);
}

static void set(uint64_t *counter, uint64_t value)
{
    __atomic_store_n(counter, value, __ATOMIC_RELAXED);
}

static void raise_to(uint64_t *counter, uint64_t value)
{
    if (value > *counter)
        set(counter, value);
}

static void end(struct pump *pump, int why)
{
    pump->ended = 1;
    pump->direction->ended_errno = why;
}

/* Take over parameters that were published since the last look. */
static void follow_changes(struct pump *pump)
{
    struct nl_direction *direction = pump->direction;
    uint64_t before = __atomic_load_n(&direction->sequence, __ATOMIC_ACQUIRE);
    if (before == pump->sequence || before & 1)
        return;
    struct nl_params params = direction->params;
    uint64_t memory_cap_bytes = direction->memory_cap_bytes;
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    if (__atomic_load_n(&direction->sequence, __ATOMIC_RELAXED) != before)
        return; /* changed again meanwhile: the writer wakes us once more */
    uint64_t at_ns = now_ns();
    pump->store.cap_bytes = memory_cap_bytes;
    nl_link_change(&pump->link, &params, at_ns);
    pump->sequence = before;
    direction->taken_ns = at_ns;
    __atomic_store_n(&direction->taken, before, __ATOMIC_RELEASE);
}

static void count_failed_write(struct pump *pump, int error)
{
    struct nl_stats *stats = pump->stats;
    if (error == EAGAIN || error == ENOBUFS || error == ENOMEM)
        add(&stats->drops_write_busy, 1);
    else if (error == EIO)
        add(&stats->drops_write_down, 1);
    else if (error == EINVAL)
        add(&stats->drops_write_bad, 1);
    else
        add(&stats->drops_write_other, 1);
    if (error == EBADFD || error == EBADF || error == ENODEV)
        end(pump, error);
}

static void count_lateness(struct pump *pump, uint64_t lateness_ns)
{
    struct nl_stats *stats = pump->stats;
    uint32_t bucket = nl_bucket_of(lateness_ns);
    add(&stats->lateness[bucket], 1);
    if (pump->woken)
        add(&stats->lateness_wake[bucket], 1);
    pump->woken = 0;
    add(&stats->lateness_sum_ns, lateness_ns);
    raise_to(&stats->lateness_max_ns, lateness_ns);
}

static void write_packet(struct pump *pump, struct record *record)
{
    struct nl_stats *stats = pump->stats;
    const struct nl_packet *packet = &record->packet;
    const char *start = (const char *)record + OFFLOAD_OFFSET;
    uint64_t at_ns = now_ns();
    ssize_t written = write(pump->direction->out_fd, start, OFFLOAD_BYTES + packet->length);
    if (written < 0) {
        count_failed_write(pump, errno);
        return;
    }
    count_lateness(pump, at_ns - packet->release_ns);
    add(&stats->units_out, 1);
    add(&stats->packets_out, packet->segments);
    add(&stats->bytes_out, packet->ip_bytes);
    add(&stats->wire_bytes_out, packet->wire_bytes);
}

/* Write every packet that is due. */
static void write_due(struct pump *pump)
{
    struct nl_packet *packet;
    while (!pump->ended && (packet = nl_link_take(&pump->link, now_ns()))) {
        struct record *record = (struct record *)packet;
        write_packet(pump, record);
        nl_store_free(&pump->store, record->chunk);
    }
}

static void accept_packet(struct pump *pump, struct record *record)
{
    struct nl_stats *stats = pump->stats;
    uint64_t waiting_bytes, waiting_packets;
    uint64_t arrival_ns = now_ns();
    int verdict = nl_link_offer(&pump->link, &record->packet, arrival_ns);
    add(&stats->units_in, 1);
    add(&stats->packets_in, record->packet.segments);
    add(&stats->bytes_in, record->packet.ip_bytes);
    if (verdict != NL_ACCEPT) {
        add(&stats->drops_queue, record->packet.segments);
        return;
    }
    record->chunk = nl_store_commit(&pump->store, OFFLOAD_OFFSET + OFFLOAD_BYTES + record->packet.length);
    raise_to(&stats->held_bytes_peak, pump->store.in_use_bytes);
    nl_link_backlog(&pump->link, arrival_ns, &waiting_bytes, &waiting_packets);
    raise_to(&stats->queue_bytes_peak, waiting_bytes);
}

/* No memory is left for what the model would hold: take the packet off the device and count it. */
static int discard_packet(struct pump *pump)
{
    static _Thread_local char scratch[LARGEST_READ];
    ssize_t got = read(pump->direction->in_fd, scratch, sizeof scratch);
    if (got > 0)
        add(&pump->stats->drops_memory, 1);
    return got > 0;
}

static int stop_reading(struct pump *pump, int error)
{
    if (error != EAGAIN && error != EINTR)
        end(pump, error);
    return 0;
}

/* Read one packet into the store and hand it to the model. 1 when there was one. */
static int read_packet(struct pump *pump)
{
    struct record *record = nl_store_reserve(&pump->store, OFFLOAD_OFFSET + LARGEST_READ);
    if (!record)
        return discard_packet(pump);
    char *start = (char *)record + OFFLOAD_OFFSET;
    ssize_t got = read(pump->direction->in_fd, start, LARGEST_READ);
    if (got < 0)
        return stop_reading(pump, errno);
    struct virtio_net_hdr offload;
    if ((size_t)got < sizeof offload) {
        add(&pump->stats->drops_malformed, 1);
        return 1;
    }
    memcpy(&offload, start, sizeof offload);
    record->packet.length = (uint32_t)((size_t)got - sizeof offload);
    if (nl_headers_parse(&offload, (const uint8_t *)start + sizeof offload, &record->packet) != 0) {
        add(&pump->stats->drops_malformed, 1);
        return 1;
    }
    if (record->packet.gso_size) { /* say truly how long the headers are: the rest goes into page fragments */
        offload.hdr_len = (uint16_t)record->packet.header;
        memcpy(start, &offload, sizeof offload);
    }
    accept_packet(pump, record);
    return 1;
}

/* Read until the device is empty, a packet is due, or a batch is full. 1 when anything was read. */
static int read_batch(struct pump *pump)
{
    int count = 0;
    while (count < READ_BATCH && !pump->ended && read_packet(pump)) {
        count++;
        if (nl_link_next(&pump->link) <= now_ns())
            break;
    }
    return count > 0;
}

static void publish(struct pump *pump, uint64_t at_ns)
{
    struct nl_stats *stats = pump->stats;
    uint64_t bytes, packets;
    nl_link_backlog(&pump->link, at_ns, &bytes, &packets);
    set(&stats->queue_bytes, bytes);
    set(&stats->queue_packets, packets);
    set(&stats->busy_ns, pump->link.busy_ns);
    set(&stats->updated_ns, at_ns);
    if (at_ns - pump->cpu_checked_ns >= CPU_CLOCK_EVERY_NS) {
        pump->cpu_checked_ns = at_ns;
        set(&stats->cpu_ns, clock_ns(CLOCK_THREAD_CPUTIME_ID));
    }
}

static void clear_wake(int wake_fd)
{
    uint64_t value;
    ssize_t got = read(wake_fd, &value, sizeof value);
    (void)got; /* an eventfd: nothing to learn from it */
}

/* Sleep until a packet may come, one is due, or somebody wakes us. */
static void sleep_until_next(struct pump *pump)
{
    uint64_t next = nl_link_next(&pump->link);
    uint64_t at_ns = now_ns();
    publish(pump, at_ns);
    if (next <= at_ns)
        return;
    uint64_t rest = next - at_ns < LONG_SLEEP_NS ? next - at_ns : LONG_SLEEP_NS;
    struct timespec timeout = {.tv_sec = (time_t)(rest / SECOND_NS), .tv_nsec = (long)(rest % SECOND_NS)};
    struct pollfd fds[2] = {{.fd = pump->direction->in_fd, .events = POLLIN},
                            {.fd = pump->direction->wake_fd, .events = POLLIN}};
    int ready = ppoll(fds, 2, &timeout, NULL);
    add(&pump->stats->wakeups, 1);
    pump->woken = 1;
    if (ready < 0 && errno != EINTR)
        end(pump, errno);
    if (ready > 0 && fds[1].revents)
        clear_wake(pump->direction->wake_fd);
    if (ready > 0 && fds[0].revents & (POLLERR | POLLHUP | POLLNVAL))
        end(pump, ENODEV);
}

void nl_pump_run(struct nl_shared *shared, struct nl_direction *direction)
{
    struct pump pump = {.shared = shared, .direction = direction, .stats = &direction->stats};
    nl_link_init(&pump.link, &direction->params);
    if (nl_store_open(&pump.store, direction->memory_start_bytes, direction->memory_cap_bytes) != 0) {
        end(&pump, ENOMEM);
    } else {
        direction->memory_locked = (uint32_t)pump.store.locked;
        __atomic_store_n(&direction->state, NL_RUNNING, __ATOMIC_RELEASE);
    }
    while (!pump.ended && !__atomic_load_n(&shared->stop, __ATOMIC_RELAXED)) {
        follow_changes(&pump);
        write_due(&pump);
        if (!read_batch(&pump))
            sleep_until_next(&pump);
    }
    nl_store_close(&pump.store);
    __atomic_store_n(&direction->state, NL_ENDED, __ATOMIC_RELEASE);
}
