/* unicode.h - what the tokenizer asks about characters.
 *
 * Hugging Face tokenizers classify characters by Unicode 16 (Oniguruma, Rust); utf8proc and PCRE2 of Debian 12 know
 * 14. A table of what was assigned or changed between the two makes the answers the same on every machine. */
#ifndef MX_TEXT_UNICODE_H
#define MX_TEXT_UNICODE_H
#include "base/str.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* General category of a code point: a UTF8PROC_CATEGORY_ value. */
int mx_uc_category(uint32_t cp);

bool mx_uc_space(uint32_t cp);   // White_Space
bool mx_uc_word(uint32_t cp);    // \w of Rust's regex: alphabetic, marks, decimal digits, connectors, joiners
bool mx_uc_numeric(uint32_t cp); // N*
bool mx_uc_punct(uint32_t cp);   // P*, or any ASCII punctuation
bool mx_uc_mark(uint32_t cp);    // M*
bool mx_uc_other(uint32_t cp);   // C*

/* Full lower case of one character into out; returns how many code points (1 or 2). */
size_t mx_uc_lower(uint32_t cp, uint32_t out[2]);

/* Ranges that Unicode 15, 15.1 and 16 added, for patterns: two letters of the category each. */
typedef struct {
    uint32_t first, last;
    uint8_t category;
} mx_uc_range;
const mx_uc_range *mx_uc_newer(size_t *n);
const char *mx_uc_category_name(int category); // "Lu"

/* GPT-2's byte alphabet: each byte as a visible character. mx_bl_char gives the character (below U+0144) of a byte;
 * mx_bl_byte the byte of a character, or -1. */
uint32_t mx_bl_char(uint8_t byte);
int mx_bl_byte(uint32_t cp);

/* Append p[0..len) with every byte replaced by its character. */
void mx_bl_encode(mx_str *out, const char *p, size_t len);

/* Append valid UTF-8: ill-formed sequences become U+FFFD, one for each maximal bad prefix. */
void mx_utf8_repair(mx_str *out, const char *p, size_t len);

#endif
