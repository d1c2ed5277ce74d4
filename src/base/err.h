/* err.h - errors are values: a status to branch on, and one sentence to show.
 *
 * Every fallible function returns mx_status and takes an mx_err as its last argument. The caller owns the
 * mx_err and may pass NULL; success leaves it alone. The sentence says what went wrong, where, and what to do. */
#ifndef MX_BASE_ERR_H
#define MX_BASE_ERR_H

typedef enum {
    MX_OK = 0,
    MX_EINVAL,      // the caller's input is wrong: a flag, a prompt, a file's content
    MX_ENOTFOUND,   // a file, a model, a tensor that should be there is not
    MX_EIO,         // the system refused: read, write, network, disk full
    MX_ENOMEM,      // no memory, or less than the model needs
    MX_UNSUPPORTED, // understood, but nothing here can do it
    MX_ELIMIT,      // a bound that protects the process was reached
    MX_ECANCELLED,  // the caller asked to stop
    MX_EINTERNAL,   // a fault of ours, or numbers that are not finite
} mx_status;

enum { MX_ERR_LEN = 480 };
typedef struct {
    mx_status code;
    char msg[MX_ERR_LEN];
} mx_err;

/* Fill err (if not NULL) with code and the formatted sentence, and return code. A sentence that does not fit
 * is cut at a character border and ends in "...". */
mx_status mx_fail(mx_err *err, mx_status code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Put "prefix: " in front of the sentence in err: the caller adds the place it knows. Returns err's code. */
mx_status mx_err_prefix(mx_err *err, mx_status code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* A word for a status, for JSON and exit codes: "invalid", "not_found", ... */
const char *mx_status_name(mx_status st);

/* The short way out of a function that owns nothing: MX_TRY(call(..., err)). */
#define MX_TRY(call)                                                                                         \
    do {                                                                                                     \
        mx_status mx_try_st_ = (call);                                                                       \
        if (mx_try_st_ != MX_OK) return mx_try_st_;                                                          \
    } while (0)

#define countof(a) (sizeof(a) / sizeof((a)[0]))

#endif
