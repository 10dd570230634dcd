/* A thread that brings memory: see provider.h. */
#define _GNU_SOURCE
#include "provider.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define STACK_BYTES ((size_t)128 << 10)
#define GENTLE_NICE 5 /* memory is brought in advance: programs under test come first */

/* Bring one chunk to each store that has ordered one. 1 when there was any. */
static int serve_round(struct nl_provider *provider)
{
    int served = 0;
    for (uint32_t i = 0; i < provider->count; i++) {
        pthread_mutex_lock(&provider->lock);
        if (provider->stores[i])
            served |= nl_store_provide(provider->stores[i]);
        pthread_mutex_unlock(&provider->lock);
    }
    return served;
}

static void *run(void *argument)
{
    struct nl_provider *provider = argument;
    uint64_t orders;
    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), GENTLE_NICE);
    while (read(provider->wake_fd, &orders, sizeof orders) == sizeof orders
           && !__atomic_load_n(&provider->stop, __ATOMIC_ACQUIRE))
        while (!__atomic_load_n(&provider->stop, __ATOMIC_ACQUIRE) && serve_round(provider))
            ;
    return NULL;
}

int nl_provider_open(struct nl_provider *provider, uint32_t count)
{
    *provider = (struct nl_provider){.count = count, .stores = calloc(count + 1, sizeof *provider->stores)};
    if (!provider->stores)
        return ENOMEM;
    pthread_mutex_init(&provider->lock, NULL);
    provider->wake_fd = eventfd(0, EFD_CLOEXEC);
    if (provider->wake_fd >= 0)
        return 0;
    free(provider->stores);
    return errno;
}

int nl_provider_start(struct nl_provider *provider)
{
    pthread_attr_t attributes;
    int error = pthread_attr_init(&attributes);
    if (error)
        return error;
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    error = pthread_create(&provider->thread, &attributes, run, provider);
    pthread_attr_destroy(&attributes);
    provider->started = error == 0;
    return error;
}

void nl_provider_close(struct nl_provider *provider)
{
    const uint64_t one = 1;
    __atomic_store_n(&provider->stop, 1, __ATOMIC_RELEASE);
    ssize_t wrote = write(provider->wake_fd, &one, sizeof one);
    (void)wrote; /* an eventfd: it can only be full, which wakes as well */
    if (provider->started)
        pthread_join(provider->thread, NULL);
    close(provider->wake_fd);
    free(provider->stores);
}

void nl_provider_serve(struct nl_provider *provider, uint32_t index, struct nl_store *store)
{
    pthread_mutex_lock(&provider->lock);
    provider->stores[index] = store;
    pthread_mutex_unlock(&provider->lock);
}
