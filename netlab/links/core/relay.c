/* The relay process: one thread per direction, until the control descriptor is closed at its other end. */
#define _GNU_SOURCE
#include "abi.h"
#include "fate.h"
#include "pump.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define THREAD_STACK_BYTES ((size_t)512 << 10)
#define READY_POLL_MS 1

struct worker {
    pthread_t thread;
    struct nl_shared *shared;
    struct nl_provider *provider;
    struct nl_direction *direction;
    uint32_t index;
};

static void *run_worker(void *argument)
{
    struct worker *worker = argument;
    worker->direction->thread_id = (uint32_t)syscall(SYS_gettid);
    nl_pump_run(worker->shared, worker->index, worker->provider);
    return NULL;
}

static int start_worker(struct worker *worker)
{
    pthread_attr_t attributes;
    int error = pthread_attr_init(&attributes);
    if (error)
        return error;
    pthread_attr_setstacksize(&attributes, THREAD_STACK_BYTES);
    error = pthread_create(&worker->thread, &attributes, run_worker, worker);
    pthread_attr_destroy(&attributes);
    return error;
}

static void stop_workers(struct nl_shared *shared, struct worker *workers, uint32_t started)
{
    const uint64_t one = 1;
    __atomic_store_n(&shared->stop, 1, __ATOMIC_RELAXED);
    for (uint32_t i = 0; i < started; i++) {
        ssize_t wrote = write(workers[i].direction->wake_fd, &one, sizeof one);
        (void)wrote; /* an eventfd of ours: it can only be full, which wakes as well */
        pthread_join(workers[i].thread, NULL);
    }
}

static void wait_until_started(const struct nl_shared *shared, const struct worker *workers)
{
    for (uint32_t i = 0; i < shared->directions; i++)
        while (__atomic_load_n(&workers[i].direction->state, __ATOMIC_ACQUIRE) == NL_STARTING)
            poll(NULL, 0, READY_POLL_MS);
}

static void wait_until_closed(int control_fd)
{
    struct pollfd fd = {.fd = control_fd, .events = POLLIN};
    char byte;
    do {
        while (poll(&fd, 1, -1) < 0 && errno == EINTR)
            ;
    } while (read(control_fd, &byte, 1) > 0);
}

static struct nl_shared *map_shared(int shared_fd)
{
    struct stat info;
    if (fstat(shared_fd, &info) != 0)
        return NULL;
    void *memory = mmap(NULL, (size_t)info.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, shared_fd, 0);
    if (memory == MAP_FAILED)
        return NULL;
    struct nl_shared *shared = memory;
    if (shared->abi_version != NL_ABI_VERSION || nl_shared_bytes(shared->directions) > (size_t)info.st_size) {
        errno = EPROTO;
        return NULL;
    }
    return shared;
}

/* Start a thread for each direction; how many could be started is left in *started. 0 or an errno. */
static int start_workers(struct nl_shared *shared, struct nl_provider *provider, struct worker *workers,
                         uint32_t *started)
{
    int error = 0;
    for (*started = 0; *started < shared->directions && !error; *started += !error) {
        uint32_t i = *started;
        workers[i] = (struct worker){
            .shared = shared, .provider = provider, .direction = nl_shared_direction(shared, i), .index = i};
        error = start_worker(&workers[i]);
    }
    return error;
}

static int carry_until_closed(struct nl_shared *shared, struct worker *workers, int control_fd)
{
    struct nl_provider provider;
    struct nl_fate_log log;
    uint32_t started = 0;
    int error = nl_provider_open(&provider, shared->directions);
    if (error)
        return error;
    error = nl_fate_log_open(&log, shared);
    if (!error)
        error = start_workers(shared, &provider, workers, &started);
    if (!error) {
        wait_until_started(shared, workers);
        error = nl_provider_start(&provider); /* only now: it would be in the way of starting */
    }
    if (!error && write(control_fd, "R", 1) == 1)
        wait_until_closed(control_fd);
    stop_workers(shared, workers, started);
    nl_fate_log_close(&log);
    nl_provider_close(&provider);
    return error;
}

/* 0 when told to end, an errno when it could not start. */
int nl_relay_main(int shared_fd, int control_fd)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a parent that is gone already has closed control_fd: seen below */
    prctl(PR_SET_NAME, "netlab-relay");
    struct nl_shared *shared = map_shared(shared_fd);
    if (!shared)
        return errno;
    struct worker *workers = calloc(shared->directions + 1, sizeof *workers);
    if (!workers)
        return ENOMEM;
    mlockall(MCL_CURRENT); /* where allowed; what matters, packet memory, is locked chunk by chunk and reported */
    int error = carry_until_closed(shared, workers, control_fd);
    free(workers);
    return error;
}
