/* Memory for packets: see store.h. */
#define _GNU_SOURCE
#include "store.h"

#include <string.h>
#include <sys/mman.h>

#define ALIGNMENT 64
#define HEADER_BYTES ((sizeof(struct nl_chunk) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT)

/* Memory on a boundary of its size, so that one huge page can hold a chunk. */
static char *map_aligned(void)
{
    char *memory = mmap(NULL, 2 * NL_CHUNK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    size_t before = (NL_CHUNK_BYTES - (uintptr_t)memory % NL_CHUNK_BYTES) % NL_CHUNK_BYTES;
    if (before)
        munmap(memory, before);
    munmap(memory + before + NL_CHUNK_BYTES, NL_CHUNK_BYTES - before);
    return memory + before;
}

static struct nl_chunk *map_chunk(struct nl_store *store)
{
    if (store->mapped_bytes + NL_CHUNK_BYTES > store->cap_bytes)
        return NULL;
    char *memory = map_aligned();
    if (!memory)
        return NULL;
    madvise(memory, NL_CHUNK_BYTES, MADV_HUGEPAGE); /* where there are: copying takes a third less */
    if (mlock(memory, NL_CHUNK_BYTES) != 0) { /* also fills it */
        store->locked = 0;
        memset(memory, 0, NL_CHUNK_BYTES);
    }
    store->mapped_bytes += NL_CHUNK_BYTES;
    struct nl_chunk *chunk = (struct nl_chunk *)(void *)memory;
    chunk->used = HEADER_BYTES;
    chunk->mapped_before = store->last_mapped;
    store->last_mapped = chunk;
    return chunk;
}

static void put_spare(struct nl_store *store, struct nl_chunk *chunk)
{
    chunk->used = HEADER_BYTES;
    chunk->next = store->spare;
    store->spare = chunk;
}

int nl_store_open(struct nl_store *store, uint64_t start_bytes, uint64_t cap_bytes)
{
    *store = (struct nl_store){.cap_bytes = cap_bytes < NL_CHUNK_BYTES ? NL_CHUNK_BYTES : cap_bytes, .locked = 1};
    do {
        struct nl_chunk *chunk = map_chunk(store);
        if (!chunk)
            break;
        put_spare(store, chunk);
    } while (store->mapped_bytes < start_bytes);
    return store->spare ? 0 : -1;
}

void nl_store_close(struct nl_store *store)
{
    struct nl_chunk *chunk = store->last_mapped;
    while (chunk) {
        struct nl_chunk *before = chunk->mapped_before;
        munmap(chunk, NL_CHUNK_BYTES);
        chunk = before;
    }
    *store = (struct nl_store){0};
}

void *nl_store_reserve(struct nl_store *store, size_t size)
{
    if (!store->current || store->current->used + size > NL_CHUNK_BYTES) {
        struct nl_chunk *fresh = store->spare;
        if (fresh)
            store->spare = fresh->next;
        else
            fresh = map_chunk(store);
        if (!fresh)
            return NULL;
        store->current = fresh; /* the old one comes back as spare when its last packet leaves */
    }
    return (char *)store->current + store->current->used;
}

struct nl_chunk *nl_store_commit(struct nl_store *store, size_t size)
{
    struct nl_chunk *chunk = store->current;
    size_t rounded = (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (chunk->live++ == 0)
        store->in_use_bytes += NL_CHUNK_BYTES;
    chunk->used += rounded;
    return chunk;
}

void nl_store_free(struct nl_store *store, struct nl_chunk *chunk)
{
    if (--chunk->live)
        return;
    store->in_use_bytes -= NL_CHUNK_BYTES;
    if (chunk == store->current)
        chunk->used = HEADER_BYTES;
    else
        put_spare(store, chunk);
}
