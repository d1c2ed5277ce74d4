#include "base/utf8.h"
#include <string.h>

int32_t mx_utf8_decode(const char *s, size_t len, size_t *used) {
    const unsigned char *p = (const unsigned char *)s;
    unsigned c = p[0];
    *used = 1;
    if (c < 0x80) return (int32_t)c;
    if (c < 0xC2 || c > 0xF4) return -1;
    size_t n = c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
    // The second byte's range depends on the first: this excludes overlong forms, surrogates and > U+10FFFF.
    unsigned lo = c == 0xE0 ? 0xA0 : c == 0xF0 ? 0x90 : 0x80;
    unsigned hi = c == 0xED ? 0x9F : c == 0xF4 ? 0x8F : 0xBF;
    uint32_t cp = c & (0xFFu >> (n + 1));
    for (size_t i = 1; i < n; i++) {
        if (i >= len || p[i] < lo || p[i] > hi) return -1;
        cp = cp << 6 | (p[i] & 0x3Fu);
        *used = i + 1;
        lo = 0x80, hi = 0xBF;
    }
    return (int32_t)cp;
}

size_t mx_utf8_encode(uint32_t cp, char out[4]) {
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xC0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3F));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xE0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3F));
        out[2] = (char)(0x80 | (cp & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3F));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3F));
    out[3] = (char)(0x80 | (cp & 0x3F));
    return 4;
}

size_t mx_utf8_valid(const char *p, size_t len) {
    size_t i = 0;
    while (i < len) {
        uint64_t eight; // ASCII, the common case, eight bytes at a time
        if (len - i >= 8 && (memcpy(&eight, p + i, 8), !(eight & 0x8080808080808080u))) {
            i += 8;
            continue;
        }
        size_t used;
        if (mx_utf8_decode(p + i, len - i, &used) < 0) break;
        i += used;
    }
    return i;
}

size_t mx_utf8_partial(const char *p, size_t len) {
    for (size_t back = 1; back <= 3 && back <= len; back++) {
        unsigned char c = (unsigned char)p[len - back];
        if ((c & 0xC0) == 0x80) continue; // a continuation byte: look further back for its lead
        size_t used, want = c < 0xC2 || c > 0xF4 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
        bool whole_prefix = mx_utf8_decode(p + len - back, back, &used) < 0 && used == back;
        return want > back && whole_prefix ? back : 0;
    }
    return 0;
}
