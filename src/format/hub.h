/* hub.h - talking to a Hugging Face hub (or a mirror): where it is, who we are, what files a model has.
 *
 * HF_ENDPOINT and HF_TOKEN as everywhere; the token goes to the endpoint's host only, never along a redirect to another. */
#ifndef MX_FORMAT_HUB_H
#define MX_FORMAT_HUB_H
#include "base/arena.h"
#include "base/err.h"
#include <curl/curl.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct {
    mx_arena *a;
    char *endpoint; // without a slash at the end
    char *token;    // or NULL
    struct curl_slist *headers;
    const volatile int *cancel; // or NULL
} mx_hub;

/* Read the environment. a must outlive the hub. MX_UNSUPPORTED under HF_HUB_OFFLINE. */
mx_status mx_hub_open(mx_hub *h, mx_arena *a, const volatile int *cancel, mx_err *err);
void mx_hub_close(mx_hub *h);

typedef struct {
    const char *path; // "model.safetensors"; checked: relative, no "..", nothing odd
    uint64_t size;
    bool lfs;         // hash is a SHA-256 of the bytes, else the SHA-1 of the git blob
    const char *hash; // lower-case hex
} mx_hub_file;

/* The commit that revision names and all files of the model at it. */
mx_status mx_hub_list(mx_hub *h, const char *id, const char *revision, char **commit, mx_hub_file **files,
                      size_t *n, mx_err *err);

/* What a response's headers said; of the last response when there were redirects. */
typedef struct {
    long code;
    long retry_after;           // seconds, -1: not stated
    int64_t length;             // of the body; -1: not stated
    int64_t range_start, total; // of Content-Range; -1: not stated
    char error_code[48];        // X-Error-Code: "GatedRepo", "RepoNotFound", "RevisionNotFound", ...
    char next[1024];            // Link: <...>; rel="next"
} mx_hub_reply;

/* Set up a request: URL, identity, limits, and reply (which must outlive the transfer) filled from the headers. */
mx_status mx_hub_request(mx_hub *h, CURL *c, const char *url, mx_hub_reply *reply, mx_err *err);

enum { MX_HUB_TRIES = 5, MX_HUB_MAX_WAIT = 60 };
/* Seconds to wait before try number n (1: the first repetition) after this outcome, or -1 when repeating is pointless. */
double mx_hub_backoff(CURLcode rc, const mx_hub_reply *reply, int n);

/* The sentence for a request that failed for good. what: "owner/name", "owner/name: config.json". */
mx_status mx_hub_explain(const mx_hub *h, CURLcode rc, const mx_hub_reply *reply, const char *what,
                         const char *id, mx_err *err);

bool mx_hub_cancelled(const mx_hub *h);
double mx_hub_now(void);                                        // seconds, monotonic
char *mx_hub_escape(mx_arena *a, const char *path, bool slash); // for a URL; slash: escape '/' too

#endif
