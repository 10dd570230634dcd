/* One thread that carries one direction of a link: reads packets from a TUN or TAP device, holds each for as long as
 * the model says, writes it to the other device. pump.c is the loop, carry.c the way of a packet. */
#ifndef NETLAB_PUMP_H
#define NETLAB_PUMP_H

#include "abi.h"
#include "fate.h"
#include "provider.h"
#include "schedule.h"
#include "stamps.h"
#include "store.h"

struct nl_pump {
    struct nl_shared *shared;
    struct nl_direction *direction;
    struct nl_stats *stats;
    struct nl_link link;
    struct nl_store store;
    struct nl_stamps stamps;
    struct nl_schedule schedule;
    struct nl_fates *fates;   /* NULL: nobody wants to know */
    uint64_t sequence;        /* of the parameters in use */
    uint64_t offload;         /* what the in device was last asked for */
    uint64_t cpu_checked_ns;  /* when the thread's processor time was last read */
    uint64_t margin_ns;       /* how much before a release to wake up: what waking has taken lately */
    int64_t spin_credit_ns;   /* what may still be spent on spinning */
    uint64_t spin_settled_ns; /* until when spinning is accounted for */
    int spinning;
    int woken; /* the next write is the first after a sleep */
    int ended;
};

/* Run the direction with this index until shared->stop or until a device goes away. Called in the thread that is to do
 * it. provider may be NULL: then the thread gets its memory itself. */
void nl_pump_run(struct nl_shared *shared, uint32_t index, struct nl_provider *provider);

/* Write every packet that is due. */
void nl_write_due(struct nl_pump *pump);

/* Note what became of the packets that are still held. */
void nl_note_held(struct nl_pump *pump);

/* Read until the device is empty, a packet is due, or a batch is full. 1 when anything was read. */
int nl_read_batch(struct nl_pump *pump);

/* ---- small things that both files need ---- */

uint64_t nl_now_ns(void); /* CLOCK_MONOTONIC */

/* Counters have one writer, this thread; the store is atomic so that a reader never sees half a number. */
static inline void nl_set(uint64_t *counter, uint64_t value)
{
    __atomic_store_n(counter, value, __ATOMIC_RELAXED);
}

static inline void nl_add(uint64_t *counter, uint64_t amount)
{
    nl_set(counter, *counter + amount);
}

static inline void nl_raise(uint64_t *counter, uint64_t value)
{
    if (value > *counter)
        nl_set(counter, value);
}

/* The thread is to end, for this errno. */
static inline void nl_end(struct nl_pump *pump, int why)
{
    pump->ended = 1;
    pump->direction->ended_errno = why;
}

#endif
