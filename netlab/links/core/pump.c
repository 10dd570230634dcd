/* One direction of a link, carried: see pump.h.
 *
 * The loop writes what is due, reads what has come, and sleeps in ppoll until either may happen. Only this thread
 * touches its packets and its model, so the path of a packet takes no lock: parameters come in through a sequence lock
 * in shared memory, counters go out through the same memory.
 */
#define _GNU_SOURCE
#include "pump.h"
#include "schedule.h"
#include "stamps.h"
#include "store.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SECOND_NS 1000000000u
#define LONG_SLEEP_NS (10 * (uint64_t)SECOND_NS)
#define PUBLISH_EVERY_NS 5000000u
#define SPIN_CREDIT_MAX_NS 1000000
#define READ_BATCH 64
#define UNWATCHED_MAX_NS 1000000u /* 250 packets at 250,000 a second: a fraction of what the device's queue holds */

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
    struct nl_stamps stamps;
    uint64_t sequence;        /* of the parameters in use */
    struct nl_schedule schedule;
    uint64_t cpu_checked_ns;  /* when the thread's processor time was last read */
    uint64_t margin_ns;       /* how much before a release to wake up: what waking has taken lately */
    int64_t spin_credit_ns;   /* what may still be spent on spinning */
    uint64_t spin_settled_ns; /* until when spinning is accounted for */
    int spinning;
    int woken;                /* the next write is the first after a sleep */
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

/* Real time is for keeping release times. A direction that passes packets on at once has none, and carries a quarter
 * more of them when it does not interrupt the programs that make and take them. */
static void ask_for_scheduling(struct pump *pump, const struct nl_params *params)
{
    int wanted = pump->shared->realtime != 0;
    nl_schedule_request(&pump->schedule, wanted, wanted && (params->delay_ns || params->rate_bps));
    __atomic_store_n(&pump->direction->scheduling, pump->schedule.granted, __ATOMIC_RELAXED);
}

/* Take over parameters that were published since the last look. */
static void follow_changes(struct pump *pump)
{
    struct nl_direction *direction = pump->direction;
    struct nl_params params;
    uint64_t sequence, memory_cap_bytes;
    if (__atomic_load_n(&direction->sequence, __ATOMIC_RELAXED) == pump->sequence)
        return;
    if (!nl_params_read(direction, &sequence, &params, &memory_cap_bytes))
        return;
    uint64_t at_ns = now_ns();
    pump->store.cap_bytes = memory_cap_bytes;
    nl_link_change(&pump->link, &params, at_ns);
    ask_for_scheduling(pump, &params);
    pump->sequence = sequence;
    set(&direction->taken_ns, at_ns);
    __atomic_store_n(&direction->taken, sequence, __ATOMIC_RELEASE);
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

static void accept_packet(struct pump *pump, struct record *record, uint64_t arrival_ns)
{
    struct nl_stats *stats = pump->stats;
    uint64_t waiting_bytes, waiting_packets;
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

/* Read one packet: its bytes and when it came. Returns the length without the offload header, or -1: there is none. */
static ssize_t read_device(struct pump *pump, char *start, uint64_t *arrival_ns)
{
    uint64_t lost = 0;
    ssize_t got = read(pump->direction->in_fd, start, LARGEST_READ);
    if (got < 0 && errno == EAGAIN)
        lost = nl_stamps_settle(&pump->stamps, now_ns());
    else if (got < 0 && errno != EINTR)
        end(pump, errno);
    else if (got > (ssize_t)OFFLOAD_BYTES)
        *arrival_ns = nl_stamps_take(&pump->stamps, (uint64_t)got - OFFLOAD_BYTES, now_ns(), &lost);
    add(&pump->stats->drops_device, lost);
    return got < 0 ? -1 : got - (ssize_t)OFFLOAD_BYTES;
}

/* No memory is left for what the model would hold: take the packet off the device and count it. */
static int discard_packet(struct pump *pump)
{
    static _Thread_local char scratch[LARGEST_READ];
    uint64_t arrival_ns;
    if (read_device(pump, scratch, &arrival_ns) < 0)
        return 0;
    add(&pump->stats->drops_memory, 1);
    return 1;
}

/* Say truly how long the headers of an offloaded unit are: the kernel puts the rest into page fragments. */
static void state_header_length(char *start, const struct nl_packet *packet)
{
    struct virtio_net_hdr offload;
    memcpy(&offload, start, sizeof offload);
    offload.hdr_len = (uint16_t)packet->header;
    memcpy(start, &offload, sizeof offload);
}

/* Read one packet into the store and hand it to the model. 1 when there was one. */
static int read_packet(struct pump *pump)
{
    struct record *record = nl_store_reserve(&pump->store, OFFLOAD_OFFSET + LARGEST_READ);
    if (!record)
        return discard_packet(pump);
    char *start = (char *)record + OFFLOAD_OFFSET;
    uint64_t arrival_ns;
    ssize_t length = read_device(pump, start, &arrival_ns);
    if (length < 0)
        return 0;
    struct virtio_net_hdr offload;
    memcpy(&offload, start, sizeof offload);
    record->packet.length = (uint32_t)length;
    if (length == 0 || nl_headers_parse(&offload, (const uint8_t *)start + sizeof offload, &record->packet) != 0) {
        add(&pump->stats->drops_malformed, 1);
        return 1;
    }
    if (record->packet.gso_size)
        state_header_length(start, &record->packet);
    accept_packet(pump, record, arrival_ns);
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
    if (at_ns - pump->cpu_checked_ns >= PUBLISH_EVERY_NS) {
        uint64_t cpu_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);
        pump->cpu_checked_ns = at_ns;
        set(&stats->cpu_ns, cpu_ns);
        add(&stats->saturated_ns, nl_schedule_guard(&pump->schedule, at_ns, cpu_ns));
    }
}

/* The same from a loop that does not come to sleep. */
static void publish_sometimes(struct pump *pump)
{
    uint64_t at_ns = now_ns();
    if (at_ns - pump->stats->updated_ns >= PUBLISH_EVERY_NS)
        publish(pump, at_ns);
}

static void clear_wake(int wake_fd)
{
    uint64_t value;
    ssize_t got = read(wake_fd, &value, sizeof value);
    (void)got; /* an eventfd: nothing to learn from it */
}

/* Track the 90 % quantile of what waking by a timer takes, within the cap: above it a step of 9 up, below of 1 down. */
static void learn_margin(struct pump *pump, uint64_t late_ns)
{
    uint64_t step = pump->margin_ns / 256 + 20;
    if (late_ns > pump->margin_ns)
        pump->margin_ns += 9 * step;
    else
        pump->margin_ns -= pump->margin_ns < step ? pump->margin_ns : step;
    if (pump->margin_ns > pump->shared->spin_cap_ns)
        pump->margin_ns = pump->shared->spin_cap_ns;
}

/* Earn credit for the time that passed and pay for what was spent spinning. */
static void settle_spin(struct pump *pump, uint64_t at_ns)
{
    uint64_t passed = at_ns - pump->spin_settled_ns;
    pump->spin_settled_ns = at_ns;
    pump->spin_credit_ns += (int64_t)(passed * pump->shared->spin_permille / 1000);
    if (pump->spin_credit_ns > SPIN_CREDIT_MAX_NS)
        pump->spin_credit_ns = SPIN_CREDIT_MAX_NS;
    if (pump->spinning) {
        pump->spin_credit_ns -= (int64_t)passed;
        add(&pump->stats->spin_ns, passed);
    }
}

/* How long before its release to be awake for a packet. */
static uint64_t spin_margin(const struct pump *pump)
{
    return pump->spin_credit_ns > (int64_t)pump->margin_ns ? pump->margin_ns : 0;
}

/* Whether a packet that comes meanwhile must end a sleep of rest_ns. With its arrival time from the kernel it need not,
 * as long as it is read well before its release; then bulk traffic costs one wake-up per release, not two. */
static int must_watch(const struct pump *pump, uint64_t rest_ns)
{
    return !pump->stamps.ring || rest_ns > pump->link.params.delay_ns / 2 || rest_ns > UNWATCHED_MAX_NS;
}

static void sleep_at_most(struct pump *pump, uint64_t from_ns, uint64_t rest_ns)
{
    struct timespec timeout = {.tv_sec = (time_t)(rest_ns / SECOND_NS), .tv_nsec = (long)(rest_ns % SECOND_NS)};
    short watched = must_watch(pump, rest_ns) ? POLLIN : 0;
    struct pollfd fds[2] = {{.fd = pump->direction->in_fd, .events = watched},
                            {.fd = pump->direction->wake_fd, .events = POLLIN}};
    int ready = ppoll(fds, 2, &timeout, NULL);
    add(&pump->stats->wakeups, 1);
    pump->woken = 1;
    if (ready == 0)
        learn_margin(pump, now_ns() - from_ns - rest_ns);
    if (ready < 0 && errno != EINTR)
        end(pump, errno);
    if (ready > 0 && fds[1].revents)
        clear_wake(pump->direction->wake_fd);
    if (ready > 0 && fds[0].revents & (POLLERR | POLLHUP | POLLNVAL))
        end(pump, ENODEV);
}

/* Sleep until a packet may come, one is due, or somebody wakes us. Shortly before a release there is no sleep, as far
 * as the credit goes: the caller's loop spins, reading whatever comes meanwhile. */
static void sleep_until_next(struct pump *pump)
{
    uint64_t next = nl_link_next(&pump->link);
    uint64_t at_ns = now_ns();
    settle_spin(pump, at_ns);
    uint64_t margin = spin_margin(pump);
    pump->spinning = next > at_ns && next <= at_ns + margin;
    if (pump->spinning)
        __builtin_ia32_pause();
    if (next <= at_ns + margin)
        return;
    publish(pump, at_ns);
    uint64_t rest = next - at_ns - margin;
    sleep_at_most(pump, at_ns, rest < LONG_SLEEP_NS ? rest : LONG_SLEEP_NS);
}

static int prepare(struct pump *pump)
{
    struct nl_direction *direction = pump->direction;
    ask_for_scheduling(pump, &direction->params);
    direction->kernel_stamps = nl_stamps_open(&pump->stamps, direction->in_fd) == 0;
    nl_link_init(&pump->link, &direction->params);
    if (nl_store_open(&pump->store, direction->memory_start_bytes, direction->memory_cap_bytes) != 0)
        return ENOMEM;
    direction->memory_locked = (uint32_t)pump->store.locked;
    pump->margin_ns = pump->shared->spin_cap_ns;
    pump->spin_settled_ns = now_ns();
    return 0;
}

void nl_pump_run(struct nl_shared *shared, struct nl_direction *direction)
{
    struct pump pump = {.shared = shared, .direction = direction, .stats = &direction->stats};
    int error = prepare(&pump);
    if (error)
        end(&pump, error);
    else
        __atomic_store_n(&direction->state, NL_RUNNING, __ATOMIC_RELEASE);
    while (!pump.ended && !__atomic_load_n(&shared->stop, __ATOMIC_RELAXED)) {
        follow_changes(&pump);
        write_due(&pump);
        if (!read_batch(&pump))
            sleep_until_next(&pump);
        else
            publish_sometimes(&pump);
    }
    nl_store_close(&pump.store);
    nl_stamps_close(&pump.stamps);
    __atomic_store_n(&direction->state, NL_ENDED, __ATOMIC_RELEASE);
}
