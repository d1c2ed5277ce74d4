/* pull_hash.c - SHA-256 and SHA-1 by FIPS 180-4. Both work on blocks of 64 bytes with 32-bit words, big-endian. */
#include "format/pull_hash.h"
#include <stdio.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

static uint32_t rotl(uint32_t x, int n) { return x << n | x >> (32 - n); }
static uint32_t rotr(uint32_t x, int n) { return x >> n | x << (32 - n); }

static uint32_t word(const unsigned char *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static const uint32_t k256[64] = {
    // the fractional parts of the cube roots of the first 64 primes
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static void block256(uint32_t s[8], const unsigned char *p) {
    uint32_t w[64], a = s[0], b = s[1], c = s[2], d = s[3], e = s[4], f = s[5], g = s[6], h = s[7];
    for (int t = 0; t < 16; t++) w[t] = word(p + 4 * t);
    for (int t = 16; t < 64; t++) {
        uint32_t x = w[t - 15], y = w[t - 2];
        w[t] = w[t - 16] + (rotr(x, 7) ^ rotr(x, 18) ^ x >> 3) + w[t - 7] +
               (rotr(y, 17) ^ rotr(y, 19) ^ y >> 10);
    }
    for (int t = 0; t < 64; t++) {
        uint32_t t1 = h + (rotr(e, 6) ^ rotr(e, 11) ^ rotr(e, 25)) + ((e & f) ^ (~e & g)) + k256[t] + w[t];
        uint32_t t2 = (rotr(a, 2) ^ rotr(a, 13) ^ rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
        h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
    }
    s[0] += a, s[1] += b, s[2] += c, s[3] += d, s[4] += e, s[5] += f, s[6] += g, s[7] += h;
}

#if defined(__x86_64__)
/* The same with the CPU's SHA instructions, which keep the state as (a b e f) and (c d g h) and do two rounds each. */
__attribute__((target("sha,sse4.1"))) static void block256_ni(uint32_t s[8], const unsigned char *p) {
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    __m128i w[4], cdab = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)s), 0xB1);
    __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(s + 4)), 0x1B);
    __m128i abef = _mm_alignr_epi8(cdab, efgh, 8), cdgh = _mm_blend_epi16(efgh, cdab, 0xF0);
    const __m128i abef0 = abef, cdgh0 = cdgh;
    for (int i = 0; i < 4; i++) w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)p + i), swap);
    for (int i = 0; i < 16; i++) { // four rounds with words 4 i to 4 i + 3
        __m128i *now = &w[i % 4], *next = &w[(i + 1) % 4], *after = &w[(i + 2) % 4], *last = &w[(i + 3) % 4];
        __m128i k = _mm_add_epi32(*now, _mm_loadu_si128((const __m128i *)k256 + i));
        cdgh = _mm_sha256rnds2_epu32(cdgh, abef, k);
        abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(k, 0x0E));
        *now = _mm_add_epi32(_mm_sha256msg1_epu32(*now, *next), _mm_alignr_epi8(*last, *after, 4));
        *now = _mm_sha256msg2_epu32(*now, *last); // the words of 16 rounds later
    }
    __m128i feba = _mm_shuffle_epi32(_mm_add_epi32(abef, abef0), 0x1B);
    __m128i dchg = _mm_shuffle_epi32(_mm_add_epi32(cdgh, cdgh0), 0xB1);
    _mm_storeu_si128((__m128i *)s, _mm_blend_epi16(feba, dchg, 0xF0));
    _mm_storeu_si128((__m128i *)(s + 4), _mm_alignr_epi8(dchg, feba, 8));
}

static bool has_sha(void) {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & 1u << 29) && __get_cpuid(1, &a, &b, &c, &d) &&
           (c & 1u << 19);
}
#else
static void block256_ni(uint32_t s[8], const unsigned char *p) { block256(s, p); }
static bool has_sha(void) { return false; }
#endif

static void block1(uint32_t s[8], const unsigned char *p) {
    uint32_t w[80], a = s[0], b = s[1], c = s[2], d = s[3], e = s[4];
    for (int t = 0; t < 16; t++) w[t] = word(p + 4 * t);
    for (int t = 16; t < 80; t++) w[t] = rotl(w[t - 3] ^ w[t - 8] ^ w[t - 14] ^ w[t - 16], 1);
    for (int t = 0; t < 80; t++) {
        uint32_t f = t < 20   ? ((b & c) | (~b & d)) + 0x5a827999
                     : t < 40 ? (b ^ c ^ d) + 0x6ed9eba1
                     : t < 60 ? ((b & c) | (b & d) | (c & d)) + 0x8f1bbcdc
                              : (b ^ c ^ d) + 0xca62c1d6;
        uint32_t next = rotl(a, 5) + f + e + w[t];
        e = d, d = c, c = rotl(b, 30), b = a, a = next;
    }
    s[0] += a, s[1] += b, s[2] += c, s[3] += d, s[4] += e;
}

void mx_hash_sha256(mx_hash *s) {
    *s = (mx_hash){.fast = has_sha(),
                   .h = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab,
                         0x5be0cd19}};
}

void mx_hash_sha1(mx_hash *s) {
    *s = (mx_hash){.sha1 = true, .h = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0}};
}

void mx_hash_git_blob(mx_hash *s, uint64_t size) {
    char head[32];
    mx_hash_sha1(s);
    int n = snprintf(head, sizeof head, "blob %llu", (unsigned long long)size);
    mx_hash_add(s, head, (size_t)n + 1); // with its NUL
}

static void block(mx_hash *s, const unsigned char *p) {
    if (s->sha1)
        block1(s->h, p);
    else if (s->fast)
        block256_ni(s->h, p);
    else
        block256(s->h, p);
}

void mx_hash_add(mx_hash *s, const void *data, size_t len) {
    const unsigned char *p = data;
    size_t have = s->len % 64;
    s->len += len;
    if (have) {
        size_t n = len < 64 - have ? len : 64 - have;
        memcpy(s->tail + have, p, n);
        p += n;
        len -= n;
        if (have + n < 64) return;
        block(s, s->tail);
    }
    for (; len >= 64; p += 64, len -= 64) block(s, p);
    if (len) memcpy(s->tail, p, len);
}

void mx_hash_hex(mx_hash *s, char out[65]) {
    unsigned char end[72] = {0x80};
    uint64_t bits = s->len * 8;
    size_t n = 64 - (s->len + 8) % 64; // the mark and zeros up to 8 bytes before a block's end
    for (int i = 0; i < 8; i++) end[n + (size_t)i] = (unsigned char)(bits >> (56 - 8 * i));
    mx_hash_add(s, end, n + 8);
    int words = s->sha1 ? 5 : 8;
    for (int i = 0; i < words; i++) snprintf(out + 8 * i, 9, "%08x", s->h[i]);
}
