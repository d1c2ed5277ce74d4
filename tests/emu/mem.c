/* mem.c - device memory: live ranges, sorted by address, with 4 KiB that belong to nobody around each and 0xFF in what nobody wrote. */
#include "emu.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { ZONE = 4096 };
static emu_range *ranges;
static size_t n_range, room;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static size_t above(uint64_t at) { // the first range that begins after `at`
    size_t lo = 0, hi = n_range;
    while (lo < hi) {
        const size_t mid = (lo + hi) / 2;
        if (ranges[mid].begin <= at)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}
static void insert(emu_range r) {
    pthread_mutex_lock(&lock);
    if (n_range == room) {
        room = room ? 2 * room : 256;
        ranges = realloc(ranges, room * sizeof *ranges);
        if (!ranges) abort();
    }
    const size_t at = above(r.begin);
    memmove(ranges + at + 1, ranges + at, (n_range - at) * sizeof *ranges);
    ranges[at] = r;
    n_range++;
    pthread_mutex_unlock(&lock);
}
static bool take(uint64_t begin, emu_range *out) {
    pthread_mutex_lock(&lock);
    const size_t at = above(begin);
    const bool found = at && ranges[at - 1].begin == begin;
    if (found) {
        *out = ranges[at - 1];
        memmove(ranges + at - 1, ranges + at, (n_range - at) * sizeof *ranges);
        n_range--;
    }
    pthread_mutex_unlock(&lock);
    return found;
}
bool emu_find(uint64_t at, size_t n, emu_range *out) {
    pthread_mutex_lock(&lock);
    const size_t i = above(at);
    const bool found = i && n <= ranges[i - 1].end - ranges[i - 1].begin &&
                       at - ranges[i - 1].begin <= ranges[i - 1].end - ranges[i - 1].begin - n;
    if (found) *out = ranges[i - 1];
    pthread_mutex_unlock(&lock);
    return found;
}
static size_t whole(size_t bytes) { return (bytes + 2 * ZONE + ZONE - 1) & ~(size_t)(ZONE - 1); }

void *emu_alloc(size_t bytes, int kind) {
    uint8_t *p =
        mmap(NULL, whole(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return NULL;
    memset(p + ZONE, 0xFF, bytes);
    emu_range r = {.begin = (uint64_t)(p + ZONE), .end = (uint64_t)(p + ZONE + bytes), .kind = kind};
    if (emu_cfg.unwritten && kind == MEM_DEVICE) r.written = calloc(bytes, 1);
    if (emu_cfg.stats[0]) r.lines = calloc((bytes >> 7) + 2, 1);
    insert(r);
    return p + ZONE;
}
bool emu_release(void *p) {
    emu_range r;
    if (!take((uint64_t)p, &r)) return false;
    munmap((uint8_t *)p - ZONE, whole(r.end - r.begin));
    free(r.written);
    free(r.lines);
    return true;
}
void emu_register(void *p, size_t n, int kind) {
    insert((emu_range){.begin = (uint64_t)p, .end = (uint64_t)p + n, .kind = kind});
}
void emu_unregister(void *p) {
    emu_range r;
    take((uint64_t)p, &r);
}
void emu_mark_written(void *p, size_t n) {
    emu_range r;
    if (emu_cfg.unwritten && emu_find((uint64_t)p, n, &r) && r.written)
        memset(r.written + ((uint64_t)p - r.begin), 1, n);
}
void emu_lines_clear(void) {
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < n_range; i++)
        if (ranges[i].lines) memset(ranges[i].lines, 0, ((ranges[i].end - ranges[i].begin) >> 7) + 2);
    pthread_mutex_unlock(&lock);
}
uint64_t emu_lines_count(void) {
    uint64_t n = 0;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < n_range; i++)
        for (uint64_t j = 0; ranges[i].lines && j < ((ranges[i].end - ranges[i].begin) >> 7) + 2; j++)
            n += ranges[i].lines[j];
    pthread_mutex_unlock(&lock);
    return n;
}
