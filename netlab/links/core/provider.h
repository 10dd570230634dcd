/* A thread that brings memory to the stores of the others before they need it, so that they never wait for it. */
#ifndef NETLAB_PROVIDER_H
#define NETLAB_PROVIDER_H

#include "store.h"

#include <pthread.h>

struct nl_provider {
    pthread_t thread;
    pthread_mutex_t lock; /* held while a store is served: it cannot go away meanwhile */
    struct nl_store **stores;
    uint32_t count;
    int wake_fd; /* an eventfd that stores wake it by */
    int started;
    int stop;
};

/* For so many stores, at the indices 0 to count - 1. Orders are taken from then on, and carried out from the start on.
 * Both return 0 or an errno. */
int nl_provider_open(struct nl_provider *provider, uint32_t count);
int nl_provider_start(struct nl_provider *provider);
void nl_provider_close(struct nl_provider *provider);

/* store may be NULL: forget the one before. */
void nl_provider_serve(struct nl_provider *provider, uint32_t index, struct nl_store *store);

#endif
