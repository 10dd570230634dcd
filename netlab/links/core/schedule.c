/* Scheduling of a relay thread: see schedule.h. */
#define _GNU_SOURCE
#include "schedule.h"

#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FIFO_PRIORITY 10
#define BEST_NICE (-20)
#define WINDOW_NS 50000000u
#define STEP_BACK_PERCENT 85 /* the kernel's own limit is 95 % of each second (sched_rt_runtime_us) */
#define STEP_UP_PERCENT 70

static int set_policy(int policy, int priority)
{
    struct sched_param param = {.sched_priority = priority};
    return pthread_setschedparam(pthread_self(), policy, &param);
}

static int set_nice(void)
{
    return setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), BEST_NICE);
}

void nl_schedule_request(struct nl_schedule *schedule, int nice, int realtime)
{
    *schedule = (struct nl_schedule){.granted = NL_SCHED_NORMAL};
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    if (nice && set_nice() == 0) /* also what a FIFO thread steps back to */
        schedule->granted = NL_SCHED_NICE;
    if (realtime && set_policy(SCHED_FIFO, FIFO_PRIORITY) == 0)
        schedule->granted = NL_SCHED_FIFO;
    else
        set_policy(SCHED_OTHER, 0);
}

static void step(struct nl_schedule *schedule, int back)
{
    int error = back ? set_policy(SCHED_OTHER, 0) : set_policy(SCHED_FIFO, FIFO_PRIORITY);
    if (error == 0)
        schedule->stepped_back = back;
}

uint64_t nl_schedule_guard(struct nl_schedule *schedule, uint64_t now_ns, uint64_t cpu_ns)
{
    uint64_t wall = now_ns - schedule->window_start_ns;
    if (wall < WINDOW_NS)
        return 0;
    uint64_t percent = (cpu_ns - schedule->window_cpu_ns) * 100 / wall;
    schedule->window_start_ns = now_ns;
    schedule->window_cpu_ns = cpu_ns;
    if (schedule->granted == NL_SCHED_FIFO) {
        if (!schedule->stepped_back && percent > STEP_BACK_PERCENT)
            step(schedule, 1);
        else if (schedule->stepped_back && percent < STEP_UP_PERCENT)
            step(schedule, 0);
    }
    return percent > STEP_BACK_PERCENT ? wall : 0;
}
