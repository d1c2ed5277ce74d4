/* json.h - reading and writing JSON.
 *
 * The parser builds its tree in an arena and never recurses: depth is bounded, time is linear, and the text is
 * borrowed (strings without escapes point into it), so a 150,000-entry tokenizer.json loads in some tens of
 * milliseconds. It takes what real model files hold beyond RFC 8259: NaN, Infinity and -Infinity as numbers,
 * integers of any length (kept as a double), lone surrogates (U+FFFD). Duplicate keys: the last one counts.
 *
 * Why our own: of the C libraries in Debian 12, jansson refuses the three things above, cJSON reads every number as a double
 * and looks keys up in O(n), json-c copies every string into an object of its own. A vocabulary of 150,000 entries must load
 * in 0.15 s in all.
 */
#ifndef MX_BASE_JSON_H
#define MX_BASE_JSON_H
#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum {
    MX_JSON_NULL,
    MX_JSON_BOOL,
    MX_JSON_INT,  // fits int64_t
    MX_JSON_REAL, // any other number
    MX_JSON_STRING,
    MX_JSON_ARRAY,
    MX_JSON_OBJECT,
} mx_json_type;

typedef struct mx_json mx_json;
struct mx_json {
    mx_json_type type;
    uint32_t key_len; // member of an object: its key
    const char *key;  // not NUL-terminated; NULL for array items and the root
    mx_json *next;    // next item of the same array or object
    union {
        bool b;
        int64_t i;
        double d;
        struct {
            const char *p;
            size_t len;
        } s; // not NUL-terminated, valid UTF-8
        struct {
            mx_json *first;
            size_t n;
        } c;
    } u;
};

enum { MX_JSON_MAX_DEPTH = 512 };

/* Parse text[0..len), which must outlive the tree. Trailing white space is allowed, other bytes are not; a UTF-8
 * byte order mark in front is skipped. MX_EINVAL with line and column, MX_ELIMIT beyond MX_JSON_MAX_DEPTH. */
mx_status mx_json_parse(mx_json **out, mx_arena *a, const char *text, size_t len, mx_err *err);

/* Member of an object or NULL (also when obj is NULL or no object): a linear search, for the some tens of members
 * of a config; walk a vocabulary with mx_json_first instead. */
const mx_json *mx_json_get(const mx_json *obj, const char *key);
const mx_json *mx_json_getn(const mx_json *obj, const char *key, size_t key_len);

/* Typed reads with a default for a member that is absent or null. A member of another type sets *bad (if not NULL)
 * to the key, which must be a literal, and gives the default. int also takes a real without fraction; num takes both. */
int64_t mx_json_int(const mx_json *obj, const char *key, int64_t dflt, const char **bad);
double mx_json_num(const mx_json *obj, const char *key, double dflt, const char **bad);
bool mx_json_bool(const mx_json *obj, const char *key, bool dflt, const char **bad);

/* The string member as a NUL-terminated copy in a, or dflt. */
const char *mx_json_str(const mx_json *obj, const char *key, const char *dflt, mx_arena *a, const char **bad);

bool mx_json_is(const mx_json *v, mx_json_type type); // false for NULL
bool mx_json_is_num(const mx_json *v);                // MX_JSON_INT or MX_JSON_REAL
double mx_json_as_num(const mx_json *v);              // of a number
bool mx_json_str_eq(const mx_json *v, const char *z); // a string with this content
const char *mx_json_type_name(const mx_json *v);      // "object", ..., "nothing" for NULL

/* for (const mx_json *it = mx_json_first(v); it; it = it->next): items of an array or object, else none. */
const mx_json *mx_json_first(const mx_json *v);
size_t mx_json_count(const mx_json *v);

/* Writing: pieces of JSON text appended to a string. Non-finite numbers are written as null. */
void mx_json_put_string(mx_str *s, const char *p,
                        size_t len);       // quoted and escaped; invalid UTF-8 becomes U+FFFD
void mx_json_put_num(mx_str *s, double v); // shortest text that reads back the same
void mx_json_put(mx_str *s, const mx_json *v,
                 int indent); // a whole tree; indent 0: one line, else spaces a level

#endif
