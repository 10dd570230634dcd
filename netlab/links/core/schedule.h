/* How the kernel schedules a relay thread: as soon as possible after a wake-up, but never so that it starves others. */
#ifndef NETLAB_SCHEDULE_H
#define NETLAB_SCHEDULE_H

#include "abi.h"

struct nl_schedule {
    uint32_t granted;  /* enum nl_scheduling */
    int stepped_back;  /* SCHED_FIFO given up for now */
    uint64_t window_start_ns, window_cpu_ns;
};

/* Ask for the best niceness and, with realtime, for SCHED_FIFO, for the calling thread. What was granted is kept, not
 * assumed. May be called again. */
void nl_schedule_request(struct nl_schedule *schedule, int nice, int realtime);

/* Judge the thread's share of a processor, from its processor time cpu_ns at now_ns; call it every few milliseconds.
 * A FIFO thread that takes nearly all of one would be stopped by the kernel for 50 ms in every second (and all other
 * real-time threads there with it): it steps back to the best niceness until the load has passed. Returns how long (ns)
 * the thread has been found saturated since the last call. */
uint64_t nl_schedule_guard(struct nl_schedule *schedule, uint64_t now_ns, uint64_t cpu_ns);

#endif
