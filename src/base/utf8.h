/* utf8.h - UTF-8 by the rules of RFC 3629: no surrogates, nothing overlong, nothing above U+10FFFF. */
#ifndef MX_BASE_UTF8_H
#define MX_BASE_UTF8_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Decode one code point at p[0..len), len > 0. Sets *used to the bytes it takes. An ill-formed sequence gives -1
 * and *used = the length of its maximal valid prefix, at least 1 (the unit that one U+FFFD replaces; Unicode 15,
 * section 3.9, table 3-8). */
int32_t mx_utf8_decode(const char *p, size_t len, size_t *used);

/* Write cp (a valid code point) to out; returns 1 to 4. */
size_t mx_utf8_encode(uint32_t cp, char out[4]);

/* Bytes of p[0..len) that are well-formed from the start. */
size_t mx_utf8_valid(const char *p, size_t len);

/* How many bytes at the end of p[0..len) are the start of a character that is not complete yet: 0 to 3. */
size_t mx_utf8_partial(const char *p, size_t len);

#endif
