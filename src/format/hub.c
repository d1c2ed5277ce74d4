/* hub.c - requests to the hub and what its answers mean. */
#include "format/hub.h"
#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "format/store_impl.h"
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

enum {
    MAX_JSON = 32 << 20, // bytes of one page of a listing
    MAX_PAGE = 200,      // pages of a listing; the hub puts 1000 files on each
    MAX_FILE = 100000,   // files of a model
    CONNECT_SECONDS = 15,
    STALL_SECONDS = 30, // a transfer without a byte for this long is cut and repeated
};

static pthread_once_t curl_once = PTHREAD_ONCE_INIT;
static CURLcode curl_rc;
static void init_curl(void) { curl_rc = curl_global_init(CURL_GLOBAL_DEFAULT); }

static mx_status no_memory(mx_err *err) { return mx_fail(err, MX_ENOMEM, "no memory for a download"); }

double mx_hub_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

bool mx_hub_cancelled(const mx_hub *h) { return h->cancel && *h->cancel; }

/* ---- identity ------------------------------------------------------------------------------------------------ */

/* The token without white space around it; anything that could not stand in a header makes it none. */
static char *clean_token(mx_arena *a, const char *s) {
    while (*s == ' ' || *s == '\n' || *s == '\r' || *s == '\t') s++;
    size_t n = strcspn(s, " \n\r\t");
    for (size_t i = 0; i < n; i++)
        if (s[i] <= 0x20 || s[i] >= 0x7F) return NULL;
    return n ? mx_arena_strndup(a, s, n) : NULL;
}

/* HF_TOKEN, else the file that `hf auth login` writes. */
static mx_status find_token(mx_hub *h, mx_err *err) {
    const char *v = getenv("HF_TOKEN"), *file = getenv("HF_TOKEN_PATH");
    char *home = NULL, *path = NULL, *text = NULL;
    size_t len = 0;
    if (v && *v) {
        h->token = clean_token(h->a, v);
        return h->token ? MX_OK : mx_fail(err, MX_EINVAL, "HF_TOKEN: holds characters that no token has");
    }
    if (file && *file) {
        path = mx_arena_strdup(h->a, file);
    } else {
        if (mx_store_hf_home(&home, h->a, NULL) != MX_OK) return MX_OK;
        path = mx_path_join(h->a, home, "token");
    }
    if (!path) return no_memory(err);
    if (mx_file_read(&text, &len, h->a, path, 4096, NULL) == MX_OK) h->token = clean_token(h->a, text);
    return MX_OK;
}

mx_status mx_hub_open(mx_hub *h, mx_arena *a, const volatile int *cancel, mx_err *err) {
    *h = (mx_hub){.a = a, .cancel = cancel};
    const char *offline = getenv("HF_HUB_OFFLINE"), *url = getenv("HF_ENDPOINT");
    if (offline && *offline && strcmp(offline, "0") && strcasecmp(offline, "false"))
        return mx_fail(err, MX_UNSUPPORTED,
                       "HF_HUB_OFFLINE is set, so nothing is downloaded; unset it to pull");
    if (!url || !*url) url = "https://huggingface.co";
    if (strncmp(url, "https://", 8) && strncmp(url, "http://", 7))
        return mx_fail(err, MX_EINVAL, "HF_ENDPOINT=%s: must start with https:// or http://", url);
    size_t n = strlen(url);
    while (n && url[n - 1] == '/') n--;
    h->endpoint = mx_arena_strndup(a, url, n);
    if (!h->endpoint) return no_memory(err);
    pthread_once(&curl_once, init_curl);
    if (curl_rc != CURLE_OK)
        return mx_fail(err, MX_EINTERNAL, "libcurl does not start: %s", curl_easy_strerror(curl_rc));
    MX_TRY(find_token(h, err));
    if (!h->token) return MX_OK;
    char *line = mx_arena_printf(a, "Authorization: Bearer %s", h->token);
    h->headers = line ? curl_slist_append(NULL, line) : NULL;
    return h->headers ? MX_OK : no_memory(err);
}

void mx_hub_close(mx_hub *h) {
    curl_slist_free_all(h->headers);
    h->headers = NULL;
}

/* ---- one request --------------------------------------------------------------------------------------------- */

static int64_t number(const char *p, const char *end) {
    int64_t v = 0;
    const char *start = p;
    for (; p < end && *p >= '0' && *p <= '9'; p++)
        if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, *p - '0', &v)) return -1;
    return p == start ? -1 : v;
}

/* Content-Range: bytes 100-199/200 */
static void read_range(mx_hub_reply *r, const char *p, const char *end) {
    if (end - p < 6 || strncasecmp(p, "bytes ", 6)) return;
    r->range_start = number(p + 6, end);
    const char *slash = memchr(p, '/', (size_t)(end - p));
    if (slash) r->total = number(slash + 1, end);
}

/* Link: <https://...cursor=...>; rel="next" */
static void read_link(mx_hub_reply *r, const char *p, const char *end) {
    while (p < end) {
        const char *open = memchr(p, '<', (size_t)(end - p));
        const char *shut = open ? memchr(open, '>', (size_t)(end - open)) : NULL;
        if (!shut) return;
        const char *stop = memchr(shut, '<', (size_t)(end - shut));
        if (!stop) stop = end;
        size_t n = (size_t)(shut - open - 1);
        if (memmem(shut, (size_t)(stop - shut), "rel=\"next\"", 10) && n < sizeof r->next) {
            memcpy(r->next, open + 1, n);
            r->next[n] = 0;
            return;
        }
        p = stop;
    }
}

static size_t on_header(char *p, size_t size, size_t n, void *arg) {
    mx_hub_reply *r = arg;
    const char *end = p + size * n, *v = memchr(p, ':', size * n);
    if (size * n >= 5 && !memcmp(p, "HTTP/", 5)) { // a new response: forget the redirect before it
        *r = (mx_hub_reply){.retry_after = -1, .length = -1, .range_start = -1, .total = -1};
        const char *sp = memchr(p, ' ', size * n);
        r->code = sp ? (long)number(sp + 1, end) : 0;
        return size * n;
    }
    if (!v) return size * n;
    size_t key = (size_t)(v - p);
    for (v++; v < end && *v == ' ';) v++;
    while (end > v && (end[-1] == '\r' || end[-1] == '\n' || end[-1] == ' ')) end--;
#define IS(name) (key == sizeof(name) - 1 && !strncasecmp(p, name, key))
    if (IS("retry-after")) {
        char date[64] = "";
        r->retry_after = (long)number(v, end);
        if (r->retry_after < 0 && (size_t)(end - v) < sizeof date) { // or a date
            memcpy(date, v, (size_t)(end - v));
            time_t at = curl_getdate(date, NULL), now = time(NULL);
            if (at >= 0) r->retry_after = at > now ? (long)(at - now) : 0;
        }
    } else if (IS("content-length")) {
        r->length = number(v, end);
    } else if (IS("content-range")) {
        read_range(r, v, end);
    } else if (IS("link")) {
        read_link(r, v, end);
    } else if (IS("x-error-code") && (size_t)(end - v) < sizeof r->error_code) {
        memcpy(r->error_code, v, (size_t)(end - v));
        r->error_code[end - v] = 0;
    }
#undef IS
    return size * n;
}

static int on_progress(void *arg, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d) {
    (void)a, (void)b, (void)c, (void)d;
    return mx_hub_cancelled(arg);
}

mx_status mx_hub_request(mx_hub *h, CURL *c, const char *url, mx_hub_reply *reply, mx_err *err) {
    *reply = (mx_hub_reply){.retry_after = -1, .length = -1, .range_start = -1, .total = -1};
    bool tls = !strncmp(h->endpoint, "https://", 8);
    CURLcode rc = curl_easy_setopt(c, CURLOPT_URL, url);
#define SET(opt, value)                                                                                      \
    if (rc == CURLE_OK) rc = curl_easy_setopt(c, opt, value)
    SET(CURLOPT_NOSIGNAL, 1L);
    SET(CURLOPT_USERAGENT, "mlxcel/" MX_VERSION);
    SET(CURLOPT_HTTPHEADER,
        h->headers); // libcurl drops Authorization when a redirect leaves host, port or protocol
    SET(CURLOPT_FOLLOWLOCATION, 1L);
    SET(CURLOPT_MAXREDIRS, 8L);
#if LIBCURL_VERSION_NUM >= 0x075500
    SET(CURLOPT_PROTOCOLS_STR, "http,https");
    SET(CURLOPT_REDIR_PROTOCOLS_STR, tls ? "https" : "http,https"); // never down from https
#else
    SET(CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
    SET(CURLOPT_REDIR_PROTOCOLS, (long)(tls ? CURLPROTO_HTTPS : CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
    SET(CURLOPT_CONNECTTIMEOUT, (long)CONNECT_SECONDS);
    SET(CURLOPT_LOW_SPEED_LIMIT, 1L);
    SET(CURLOPT_LOW_SPEED_TIME, (long)STALL_SECONDS);
    SET(CURLOPT_HEADERFUNCTION, on_header);
    SET(CURLOPT_HEADERDATA, reply);
    SET(CURLOPT_NOPROGRESS, 0L);
    SET(CURLOPT_XFERINFOFUNCTION, on_progress);
    SET(CURLOPT_XFERINFODATA, h);
#undef SET
    return rc == CURLE_OK ? MX_OK : mx_fail(err, MX_EIO, "%s: %s", url, curl_easy_strerror(rc));
}

/* ---- outcomes -------------------------------------------------------------------------------------------------- */

double mx_hub_backoff(CURLcode rc, const mx_hub_reply *reply, int n) {
    switch (rc) { // nothing that waiting would mend
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_URL_MALFORMAT:
    case CURLE_TOO_MANY_REDIRECTS:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_OUT_OF_MEMORY:
    case CURLE_WRITE_ERROR:
    case CURLE_ABORTED_BY_CALLBACK: return -1;
    default: break;
    }
    bool busy = reply->code == 429 || reply->code == 503;
    if (rc == CURLE_OK && reply->code >= 400 && reply->code < 500 && !busy && reply->code != 408) return -1;
    if (n >= MX_HUB_TRIES) return -1;
    double wait = 0.3 * (double)(1 << (n - 1)); // 0.3, 0.6, 1.2, 2.4 s
    if (busy && reply->retry_after > MX_HUB_MAX_WAIT) return -1;
    if (busy && (double)reply->retry_after > wait) wait = (double)reply->retry_after;
    return wait;
}

mx_status mx_hub_explain(const mx_hub *h, CURLcode rc, const mx_hub_reply *r, const char *what,
                         const char *id, mx_err *err) {
    if (rc == CURLE_ABORTED_BY_CALLBACK || mx_hub_cancelled(h))
        return mx_fail(err, MX_ECANCELLED, "%s: stopped; pull again to continue where it was", what);
    if (rc != CURLE_OK)
        return mx_fail(err, MX_EIO, "%s: %s (%s); pull again to continue where it was", what,
                       curl_easy_strerror(rc), h->endpoint);
    bool gated = !strcmp(r->error_code, "GatedRepo"), unknown = !strcmp(r->error_code, "RepoNotFound");
    switch (r->code) {
    case 401:
    case 403:
        if (gated || r->code == 403)
            return mx_fail(err, MX_EIO,
                           "%s: access is restricted: accept the model's terms at %s/%s, then %s (HTTP %ld)",
                           what, h->endpoint, id,
                           h->token ? "pull again with a token of that account"
                                    : "set HF_TOKEN and pull again",
                           r->code);
        if (h->token)
            return mx_fail(
                err, unknown ? MX_ENOTFOUND : MX_EIO,
                "%s: no such model, or this token may not see it; check the name and HF_TOKEN (HTTP 401)",
                what);
        return mx_fail(err, unknown ? MX_ENOTFOUND : MX_EIO,
                       "%s: no such model, or it is private: check the name, or set HF_TOKEN (HTTP 401)",
                       what);
    case 404:
        if (!strcmp(r->error_code, "RevisionNotFound"))
            return mx_fail(err, MX_ENOTFOUND, "%s: has no such revision (HTTP 404)", what);
        return mx_fail(err, MX_ENOTFOUND, "%s: is not on %s; check the name (HTTP 404)", what, h->endpoint);
    case 429:
        if (r->retry_after >= 0)
            return mx_fail(err, MX_EIO,
                           "%s: the hub wants no more requests for %ld s; pull again after that%s (HTTP 429)",
                           what, r->retry_after, h->token ? "" : ", or set HF_TOKEN for a higher limit");
        return mx_fail(err, MX_EIO, "%s: the hub refuses so many requests; pull again later%s (HTTP 429)",
                       what, h->token ? "" : ", or set HF_TOKEN for a higher limit");
    default:
        return mx_fail(err, MX_EIO, "%s: %s answers HTTP %ld; pull again later", what, h->endpoint, r->code);
    }
}

/* ---- listing ----------------------------------------------------------------------------------------------------- */

static size_t on_text(char *p, size_t size, size_t n, void *arg) {
    mx_str *s = arg;
    mx_str_add(s, p, size * n);
    return s->oom ? 0 : size * n;
}

/* GET a JSON document, repeating what can be repeated. */
static mx_status get_json(mx_hub *h, const char *url, const char *what, const char *id, mx_json **out,
                          mx_hub_reply *reply, mx_err *err) {
    mx_str text = {.limit = MAX_JSON};
    CURL *c = curl_easy_init();
    mx_status st = c ? mx_hub_request(h, c, url, reply, err) : no_memory(err);
    if (st == MX_OK) {
        curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_text);
        curl_easy_setopt(c, CURLOPT_WRITEDATA, &text);
        curl_easy_setopt(c, CURLOPT_ACCEPT_ENCODING, "");
    }
    for (int n = 1; st == MX_OK; n++) {
        mx_str_clear(&text);
        CURLcode rc = curl_easy_perform(c);
        if (rc == CURLE_OK && reply->code == 200) break;
        double wait = mx_hub_backoff(rc, reply, n);
        if (text.oom)
            st = mx_fail(err, MX_ELIMIT, "%s: the hub's list of files is longer than %d MB", what,
                         MAX_JSON >> 20);
        else if (wait < 0 || mx_hub_cancelled(h))
            st = mx_hub_explain(h, rc, reply, what, id, err);
        for (double end = mx_hub_now() + wait; st == MX_OK && mx_hub_now() < end;) {
            nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
            if (mx_hub_cancelled(h)) st = mx_hub_explain(h, CURLE_ABORTED_BY_CALLBACK, reply, what, id, err);
        }
    }
    curl_easy_cleanup(c);
    char *copy = st == MX_OK ? mx_arena_strndup(h->a, text.p ? text.p : "", text.len) : NULL;
    if (st == MX_OK && !copy) st = no_memory(err);
    if (st == MX_OK) {
        st = mx_json_parse(out, h->a, copy, text.len, err);
        if (st != MX_OK) mx_err_prefix(err, st, "%s: the answer of %s is no listing", what, h->endpoint);
    }
    mx_str_free(&text);
    return st;
}

static bool is_hex(const char *p, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!((p[i] >= '0' && p[i] <= '9') || (p[i] >= 'a' && p[i] <= 'f'))) return false;
    return n > 0;
}

/* A path that stays inside the model's folder on every system. */
static bool safe_path(const char *p, size_t n) {
    if (n == 0 || p[0] == '/') return false;
    for (size_t i = 0, start = 0; i <= n; i++) {
        if (i < n && p[i] != '/') {
            if ((unsigned char)p[i] < 0x20 || p[i] == 0x7F || p[i] == '\\') return false;
            continue;
        }
        size_t len = i - start; // a component
        if (len == 0 || (len <= 2 && p[start] == '.' && p[i - 1] == '.')) return false;
        start = i + 1;
    }
    return true;
}

/* An item of the tree: {"type": "file", "path", "size", "oid", "lfs": {"oid": sha256, "size"}}. */
static mx_status read_file_entry(mx_hub *h, const mx_json *v, const char *id, mx_hub_file *f, bool *is_file,
                                 mx_err *err) {
    const mx_json *path = mx_json_get(v, "path"), *lfs = mx_json_get(v, "lfs");
    *is_file = mx_json_str_eq(mx_json_get(v, "type"), "file");
    if (!*is_file) return MX_OK;
    f->lfs = mx_json_is(lfs, MX_JSON_OBJECT);
    const mx_json *hash = mx_json_get(f->lfs ? lfs : v, "oid"), *size = mx_json_get(f->lfs ? lfs : v, "size");
    if (!mx_json_is(path, MX_JSON_STRING) || !mx_json_is(size, MX_JSON_INT) || size->u.i < 0 ||
        !mx_json_is(hash, MX_JSON_STRING) || hash->u.s.len != (f->lfs ? 64u : 40u) ||
        !is_hex(hash->u.s.p, hash->u.s.len))
        return mx_fail(err, MX_EIO, "%s: %s lists a file without name, size or hash", id, h->endpoint);
    if (!safe_path(path->u.s.p, path->u.s.len))
        return mx_fail(err, MX_EINVAL,
                       "%s: %s lists a file whose name leaves the model's folder; nothing was downloaded", id,
                       h->endpoint);
    f->path = mx_arena_strndup(h->a, path->u.s.p, path->u.s.len);
    f->hash = mx_arena_strndup(h->a, hash->u.s.p, hash->u.s.len);
    f->size = (uint64_t)size->u.i;
    return f->path && f->hash ? MX_OK : no_memory(err);
}

char *mx_hub_escape(mx_arena *a, const char *path, bool slash) {
    char *out = mx_arena_alloc(a, strlen(path) * 3 + 1), *o = out;
    for (; out && *path; path++) {
        unsigned char c = (unsigned char)*path;
        bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                     strchr("-._~", c) || (c == '/' && !slash);
        if (plain) {
            *o++ = (char)c;
        } else {
            *o++ = '%';
            *o++ = "0123456789ABCDEF"[c >> 4];
            *o++ = "0123456789ABCDEF"[c & 15];
        }
    }
    return out;
}

/* The revision's commit; everything later names it, so a push in between cannot mix two versions. */
static mx_status find_commit(mx_hub *h, const char *id, const char *revision, char **commit, mx_err *err) {
    mx_json *doc = NULL;
    mx_hub_reply reply;
    char *rev = mx_hub_escape(h->a, revision, true);
    char *url = rev ? mx_arena_printf(h->a, "%s/api/models/%s/revision/%s", h->endpoint, id, rev) : NULL;
    if (!url) return no_memory(err);
    MX_TRY(get_json(h, url, id, id, &doc, &reply, err));
    const mx_json *sha = mx_json_get(doc, "sha");
    if (!mx_json_is(sha, MX_JSON_STRING) || sha->u.s.len != 40 || !is_hex(sha->u.s.p, 40))
        return mx_fail(err, MX_EIO, "%s: %s does not say which commit %s is", id, h->endpoint, revision);
    *commit = mx_arena_strndup(h->a, sha->u.s.p, 40);
    return *commit ? MX_OK : no_memory(err);
}

static mx_status list_pages(mx_hub *h, const char *id, const char *commit, mx_hub_file **all, size_t *n,
                            mx_err *err) {
    size_t cap = 0;
    char *url = mx_arena_printf(h->a, "%s/api/models/%s/tree/%s?recursive=true", h->endpoint, id, commit);
    for (int page = 0; url; page++) {
        mx_json *doc = NULL;
        mx_hub_reply reply;
        if (page == MAX_PAGE || *n > MAX_FILE)
            return mx_fail(err, MX_ELIMIT, "%s: lists more files than any model has", id);
        MX_TRY(get_json(h, url, id, id, &doc, &reply, err));
        if (!mx_json_is(doc, MX_JSON_ARRAY))
            return mx_fail(err, MX_EIO, "%s: %s sent no list of files", id, h->endpoint);
        for (const mx_json *v = doc->u.c.first; v; v = v->next) {
            mx_hub_file f = {0};
            bool is_file;
            MX_TRY(read_file_entry(h, v, id, &f, &is_file, err));
            if (!is_file) continue;
            if (*n == cap) {
                mx_hub_file *grown = mx_arena_array(h->a, cap = cap ? cap * 2 : 64, sizeof *grown);
                if (!grown) return no_memory(err);
                if (*n) memcpy(grown, *all, *n * sizeof *grown);
                *all = grown;
            }
            (*all)[(*n)++] = f;
        }
        if (!*reply.next) return MX_OK;
        size_t len = strlen(h->endpoint); // the token goes along, so only to the same place
        if (strncmp(reply.next, h->endpoint, len) || reply.next[len] != '/')
            return mx_fail(err, MX_EIO,
                           "%s: the hub continues its list on another host, which is not followed", id);
        url = mx_arena_strdup(h->a, reply.next);
    }
    return no_memory(err);
}

mx_status mx_hub_list(mx_hub *h, const char *id, const char *revision, char **commit, mx_hub_file **files,
                      size_t *n, mx_err *err) {
    *files = NULL;
    *n = 0;
    MX_TRY(find_commit(h, id, revision, commit, err));
    return list_pages(h, id, *commit, files, n, err);
}
