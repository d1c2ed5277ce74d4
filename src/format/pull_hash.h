/* pull_hash.h - SHA-256 and SHA-1 of what is downloaded: the hub states the first for large files, the second (of a git
 * blob) for small ones.
 *
 * Our own, as 120 lines of the standard (FIPS 180-4) are less than one more library to install for everyone who builds.
 * On a 2.x GHz server core SHA-256 runs at about 1 GB/s with the CPU's instructions for it and at 0.25 GB/s without. It proves
 * that the bytes are those the hub meant; nothing secret passes through it.
 */
#ifndef MX_FORMAT_PULL_HASH_H
#define MX_FORMAT_PULL_HASH_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    bool sha1;
    bool fast; // SHA-256 by the CPU's own instructions
    uint32_t h[8];
    uint64_t len; // bytes so far
    unsigned char tail[64];
} mx_hash;

void mx_hash_sha256(mx_hash *s);
void mx_hash_sha1(mx_hash *s);
void mx_hash_git_blob(mx_hash *s, uint64_t size); // SHA-1 of a file of size bytes as git counts it
void mx_hash_add(mx_hash *s, const void *p, size_t len);
void mx_hash_hex(mx_hash *s, char out[65]); // ends the hash: 64 or 40 lower-case digits and NUL

#endif
