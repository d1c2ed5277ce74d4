/* memory.c - see memory.h. */
#include "engine/memory.h"
#include "base/file.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A small file of /proc or /sys under the root, NUL-terminated into buf; false if it cannot be read. */
static bool slurp(char *buf, size_t cap, const char *path) {
    const char *root = getenv("MLXCEL_SYSROOT");
    char full[1024];
    int n = snprintf(full, sizeof full, "%s%s", root ? root : "", path);
    if (n < 0 || (size_t)n >= sizeof full) return false;
    FILE *f = fopen(full, "re");
    if (!f) return false;
    size_t len = fread(buf, 1, cap - 1, f);
    fclose(f);
    buf[len] = '\0';
    return len > 0;
}

/* The number after `key` at the start of a line, in bytes; false if there is none. */
static bool field(uint64_t *v, const char *text, const char *key, uint64_t unit) {
    size_t len = strlen(key);
    for (const char *p = text; p; p = strchr(p, '\n'), p = p ? p + 1 : NULL) {
        if (strncmp(p, key, len) != 0) continue;
        char *end;
        unsigned long long x = strtoull(p + len, &end, 10);
        if (end == p + len || x > UINT64_MAX / unit) return false;
        *v = x * unit;
        return true;
    }
    return false;
}

/* What the control group at dir still allows: its limit less its use, dropped cache not counted as use. */
static uint64_t group_left(const char *dir, const char *limit_file, const char *use_file,
                           const char *cache_key) {
    char path[600], buf[8192];
    uint64_t limit, use, cache = 0;
    snprintf(path, sizeof path, "%s/%s", dir, limit_file);
    if (!slurp(buf, sizeof buf, path) || !field(&limit, buf, "", 1)) return UINT64_MAX; // "max": no limit
    snprintf(path, sizeof path, "%s/%s", dir, use_file);
    if (!slurp(buf, sizeof buf, path) || !field(&use, buf, "", 1)) return UINT64_MAX;
    snprintf(path, sizeof path, "%s/memory.stat", dir);
    if (slurp(buf, sizeof buf, path)) (void)field(&cache, buf, cache_key, 1);
    use = use > cache ? use - cache : 0;
    return limit > use ? limit - use : 0;
}

/* The least that the group `path` and those above it, up to the mount, allow. Inside a container the path may name a group
 * outside its view; then only the mount itself is there to read. */
static uint64_t tree_left(const char *mount, const char *path, const char *limit_file, const char *use_file,
                          const char *cache_key) {
    char dir[500];
    uint64_t left = UINT64_MAX;
    int n = snprintf(dir, sizeof dir, "%s%s", mount, path);
    if (n < 0 || (size_t)n >= sizeof dir) snprintf(dir, sizeof dir, "%s", mount);
    for (size_t stop = strlen(mount);;) {
        uint64_t here = group_left(dir, limit_file, use_file, cache_key);
        if (here < left) left = here;
        char *slash = strrchr(dir + stop, '/');
        if (!slash) return left;
        *slash = '\0';
    }
}

uint64_t mx_memory_available(void) {
    char buf[8192];
    uint64_t left = UINT64_MAX, v;
    if (slurp(buf, sizeof buf, "/proc/meminfo") && field(&v, buf, "MemAvailable:", 1024)) left = v;
    if (!slurp(buf, sizeof buf, "/proc/self/cgroup")) return left;
    char *save = NULL;
    for (char *line = strtok_r(buf, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char *kinds = strchr(line, ':'), *path = kinds ? strchr(kinds + 1, ':') : NULL;
        if (!path) continue;
        *path++ = '\0';
        v = UINT64_MAX;
        if (strcmp(kinds, ":") == 0)
            v = tree_left("/sys/fs/cgroup", path, "memory.max", "memory.current", "inactive_file ");
        else if (strstr(kinds, "memory"))
            v = tree_left("/sys/fs/cgroup/memory", path, "memory.limit_in_bytes", "memory.usage_in_bytes",
                          "total_inactive_file ");
        if (v < left) left = v;
    }
    return left;
}

/* total - used of a kind of memory that card `card` has; false if it does not say. */
static bool card_left(int card, const char *kind, uint64_t *left) {
    char path[128], buf[64];
    uint64_t total, used;
    snprintf(path, sizeof path, "/sys/class/drm/card%d/device/mem_info_%s_total", card, kind);
    if (!slurp(buf, sizeof buf, path) || !field(&total, buf, "", 1)) return false;
    snprintf(path, sizeof path, "/sys/class/drm/card%d/device/mem_info_%s_used", card, kind);
    if (!slurp(buf, sizeof buf, path) || !field(&used, buf, "", 1)) return false;
    *left = total > used ? total - used : 0;
    return true;
}

uint64_t mx_memory_shared_available(uint64_t driver_free) {
    enum { CARDS = 16 };
    uint64_t host = mx_memory_available(), most = host, vram, gtt;
    for (int card = 0; card < CARDS; card++) {
        if (!card_left(card, "vram", &vram) || !card_left(card, "gtt", &gtt)) continue;
        most = vram + (gtt < host ? gtt : host);
        break;
    }
    return driver_free < most ? driver_free : most;
}

uint64_t mx_memory_kv_bytes(const mx_memory_need *n, int ctx) {
    return n->fixed_kv + n->per_position * (uint64_t)((ctx + n->unit - 1) / n->unit * n->unit);
}

int mx_memory_fit(const mx_memory_need *n, int ctx, uint64_t available) {
    uint64_t base = n->weights + n->scratch + n->fixed_kv;
    if (base > available) return 0;
    if (n->per_position == 0) return ctx;
    uint64_t units = (available - base) / (n->per_position * (uint64_t)n->unit);
    return units >= (uint64_t)ctx / (uint64_t)n->unit + 1 ? ctx : (int)units * n->unit;
}

/* "3.2 GB", "740 MB" into buf. */
static const char *amount(uint64_t bytes, char buf[32]) {
    if (bytes >= 1000000000)
        snprintf(buf, 32, "%.1f GB", (double)bytes / 1e9);
    else
        snprintf(buf, 32, "%.1f MB", (double)bytes / 1e6);
    return buf;
}

mx_status mx_memory_check(const mx_memory_need *n, int ctx, uint64_t available, mx_err *err) {
    uint64_t kv = mx_memory_kv_bytes(n, ctx), need = n->weights + kv + n->scratch;
    if (need <= available) return MX_OK;
    int fits = mx_memory_fit(n, ctx, available);
    char help[160], b[5][32];
    if (fits > 0)
        snprintf(help, sizeof help, "--ctx-size %d%s would fit", fits,
                 n->n_seq > 1 ? " (or a smaller --parallel)" : "");
    else if (n->n_seq > 1)
        snprintf(help, sizeof help, "no --ctx-size fits: try --parallel 1 or a smaller model");
    else
        snprintf(help, sizeof help, "no --ctx-size fits: take a smaller or more quantized model");
    return mx_fail(
        err, MX_ENOMEM,
        "%s needs %s (weights %s, KV cache %s for %d x %d positions, work space %s) but %s are free; "
        "%s%s, --no-memory-check loads anyway",
        n->name, amount(need, b[0]), amount(n->weights, b[1]), amount(kv, b[2]), n->n_seq, ctx,
        amount(n->scratch, b[3]), amount(available, b[4]), help,
        n->f32_kv ? ", --kv bf16 halves the KV cache" : "");
}
