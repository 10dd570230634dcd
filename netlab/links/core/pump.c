/* One direction of a link, carried: see pump.h.
 *
 * The loop writes what is due, reads what has come, and sleeps in ppoll until either may happen. Only this thread
 * touches its packets and its model, so the path of a packet takes no lock: parameters come in through a sequence lock
 * in shared memory, counters go out through the same memory.
 */
#define _GNU_SOURCE
#include "offload.h"
#include "pump.h"
#include "shared.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define SECOND_NS 1000000000u
#define LONG_SLEEP_NS (10 * (uint64_t)SECOND_NS)
#define PUBLISH_EVERY_NS 5000000u
#define SPIN_CREDIT_MAX_NS 1000000
#define UNWATCHED_MAX_NS 1000000u /* 250 packets at 250,000 a second: a fraction of what the device's queue holds */

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * SECOND_NS + (uint64_t)t.tv_nsec;
}

uint64_t nl_now_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

/* Real time is for keeping release times. A direction that passes packets on at once has none, and carries a quarter
 * more of them when it does not interrupt the programs that make and take them. */
static void ask_for_scheduling(struct nl_pump *pump, const struct nl_params *params)
{
    int wanted = pump->shared->realtime != 0;
    nl_schedule_request(&pump->schedule, wanted, wanted && (params->delay_ns || params->rate_bps));
    __atomic_store_n(&pump->direction->scheduling, pump->schedule.granted, __ATOMIC_RELAXED);
}

static void ask_for_offload(struct nl_pump *pump, const struct nl_params *params)
{
    if (params->offload == pump->offload)
        return;
    if (nl_offload_set(pump->direction->in_fd, (enum nl_offload)params->offload) == 0)
        pump->offload = params->offload;
    else
        nl_end(pump, errno); /* not the emulation that was asked for */
}

/* Take over parameters that were published since the last look. */
static void follow_changes(struct nl_pump *pump)
{
    struct nl_direction *direction = pump->direction;
    struct nl_setting setting;
    if (!nl_setting_changed(direction, pump->sequence) || !nl_setting_read(direction, &setting))
        return;
    uint64_t at_ns = nl_now_ns();
    pump->store.cap_bytes = setting.memory_cap_bytes;
    nl_link_change(&pump->link, &setting.params, setting.jitter, at_ns);
    ask_for_scheduling(pump, &setting.params);
    ask_for_offload(pump, &setting.params);
    pump->sequence = setting.sequence;
    nl_set(&direction->taken_ns, at_ns);
    __atomic_store_n(&direction->taken, setting.sequence, __ATOMIC_RELEASE);
}

static void publish(struct nl_pump *pump, uint64_t at_ns)
{
    struct nl_stats *stats = pump->stats;
    uint64_t bytes, packets;
    nl_link_backlog(&pump->link, at_ns, &bytes, &packets);
    nl_set(&stats->queue_bytes, bytes);
    nl_set(&stats->queue_packets, packets);
    nl_set(&stats->busy_ns, pump->link.busy_ns);
    nl_set(&stats->updated_ns, at_ns);
    if (at_ns - pump->cpu_checked_ns >= PUBLISH_EVERY_NS) {
        uint64_t cpu_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);
        pump->cpu_checked_ns = at_ns;
        nl_set(&stats->cpu_ns, cpu_ns);
        nl_add(&stats->saturated_ns, nl_schedule_guard(&pump->schedule, at_ns, cpu_ns));
    }
}

/* The same from a loop that does not come to sleep. */
static void publish_sometimes(struct nl_pump *pump)
{
    uint64_t at_ns = nl_now_ns();
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
static void learn_margin(struct nl_pump *pump, uint64_t late_ns)
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
static void settle_spin(struct nl_pump *pump, uint64_t at_ns)
{
    uint64_t passed = at_ns - pump->spin_settled_ns;
    pump->spin_settled_ns = at_ns;
    pump->spin_credit_ns += (int64_t)(passed * pump->shared->spin_permille / 1000);
    if (pump->spin_credit_ns > SPIN_CREDIT_MAX_NS)
        pump->spin_credit_ns = SPIN_CREDIT_MAX_NS;
    if (pump->spinning) {
        pump->spin_credit_ns -= (int64_t)passed;
        nl_add(&pump->stats->spin_ns, passed);
    }
}

/* How long before its release to be awake for a packet. */
static uint64_t spin_margin(const struct nl_pump *pump)
{
    return pump->spin_credit_ns > (int64_t)pump->margin_ns ? pump->margin_ns : 0;
}

/* Whether a packet that comes meanwhile must end a sleep of rest_ns. With its arrival time from the kernel it need not,
 * as long as it is read well before its release; then bulk traffic costs one wake-up per release, not two. */
static int must_watch(const struct nl_pump *pump, uint64_t rest_ns)
{
    return !pump->stamps.ring || rest_ns > nl_link_least_travel_ns(&pump->link) / 2 || rest_ns > UNWATCHED_MAX_NS;
}

static void sleep_at_most(struct nl_pump *pump, uint64_t from_ns, uint64_t rest_ns)
{
    struct timespec timeout = {.tv_sec = (time_t)(rest_ns / SECOND_NS), .tv_nsec = (long)(rest_ns % SECOND_NS)};
    short watched = must_watch(pump, rest_ns) ? POLLIN : 0;
    struct pollfd fds[2] = {{.fd = pump->direction->in_fd, .events = watched},
                            {.fd = pump->direction->wake_fd, .events = POLLIN}};
    int ready = ppoll(fds, 2, &timeout, NULL);
    nl_add(&pump->stats->wakeups, 1);
    pump->woken = 1;
    if (ready == 0)
        learn_margin(pump, nl_now_ns() - from_ns - rest_ns);
    if (ready < 0 && errno != EINTR)
        nl_end(pump, errno);
    if (ready > 0 && fds[1].revents)
        clear_wake(pump->direction->wake_fd);
    if (ready > 0 && fds[0].revents & (POLLERR | POLLHUP | POLLNVAL))
        nl_end(pump, ENODEV);
}

/* Sleep until a packet may come, one is due, or somebody wakes us. Shortly before a release there is no sleep, as far
 * as the credit goes: the caller's loop spins, reading whatever comes meanwhile. */
static void sleep_until_next(struct nl_pump *pump)
{
    uint64_t next = nl_link_next(&pump->link);
    uint64_t at_ns = nl_now_ns();
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

static int prepare(struct nl_pump *pump, int provider_fd)
{
    struct nl_direction *direction = pump->direction;
    ask_for_scheduling(pump, &direction->params);
    ask_for_offload(pump, &direction->params);
    direction->kernel_stamps = nl_stamps_open(&pump->stamps, direction->in_fd) == 0;
    nl_link_init(&pump->link, &direction->params, direction->jitter);
    if (nl_store_open(&pump->store, direction->memory_cap_bytes, provider_fd) != 0)
        return ENOMEM;
    direction->memory_locked = (uint32_t)pump->store.locked;
    pump->margin_ns = pump->shared->spin_cap_ns;
    pump->spin_settled_ns = nl_now_ns();
    return 0;
}

static void loop(struct nl_pump *pump)
{
    while (!pump->ended && !__atomic_load_n(&pump->shared->stop, __ATOMIC_RELAXED)) {
        follow_changes(pump);
        nl_write_due(pump);
        if (nl_read_batch(pump))
            publish_sometimes(pump);
        else
            sleep_until_next(pump);
    }
}

void nl_pump_run(struct nl_shared *shared, uint32_t index, struct nl_provider *provider)
{
    struct nl_direction *direction = nl_shared_direction(shared, index);
    struct nl_pump *pump = calloc(1, sizeof *pump);
    if (pump) {
        *pump = (struct nl_pump){.shared = shared, .direction = direction, .stats = &direction->stats,
                                .fates = (struct nl_fates *)(uintptr_t)direction->fates};
        int error = prepare(pump, provider ? provider->wake_fd : -1);
        direction->ended_errno = error ? error : direction->ended_errno;
        if (provider)
            nl_provider_serve(provider, index, &pump->store);
        nl_store_prepare(&pump->store, direction->memory_start_bytes);
    } else {
        direction->ended_errno = ENOMEM;
    }
    if (!direction->ended_errno) {
        __atomic_store_n(&direction->state, NL_RUNNING, __ATOMIC_RELEASE);
        loop(pump);
    }
    if (provider)
        nl_provider_serve(provider, index, NULL);
    if (pump) {
        nl_note_held(pump);
        nl_store_close(&pump->store);
        nl_stamps_close(&pump->stamps);
        free(pump);
    }
    __atomic_store_n(&direction->state, NL_ENDED, __ATOMIC_RELEASE);
}
