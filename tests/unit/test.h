/* test.h - unit tests on cmocka, with checks that say what they saw.
 *
 * TEST(name) { ... } registers itself; each file is one program that runs its tests in order and prints TAP
 * lines for ./check to count. A failed check ends its test. SKIP says why. */
#ifndef MX_TEST_H
#define MX_TEST_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <math.h>
#include <cmocka.h>
#include "base/err.h"

enum { MX_TEST_MAX = 256 };
extern struct CMUnitTest mx_tests[MX_TEST_MAX];
extern int mx_n_test;

#define TEST(fn)                                                                                             \
    static void fn(void **state);                                                                            \
    __attribute__((constructor)) static void fn##_register_(void) {                                          \
        if (mx_n_test == MX_TEST_MAX) abort();                                                               \
        mx_tests[mx_n_test++] = (struct CMUnitTest){.name = #fn, .test_func = fn};                           \
    }                                                                                                        \
    static void fn(__attribute__((unused)) void **state)

/* CHECK(cond) or CHECK(cond, "case %d", i). */
#define CHECK(cond, ...)                                                                                     \
    do {                                                                                                     \
        if (!(cond)) mx_test_fail(__FILE__, __LINE__, #cond, "" __VA_ARGS__);                                \
    } while (0)
#define CHECK_STR(got, want) mx_test_str(__FILE__, __LINE__, got, want)
#define CHECK_INT(got, want) mx_test_int(__FILE__, __LINE__, (long long)(got), (long long)(want))
/* MX_OK, else the sentence in err is shown. */
#define CHECK_OK(call, err)                                                                                  \
    do {                                                                                                     \
        mx_status st_ = (call);                                                                              \
        if (st_ != MX_OK) mx_test_fail(__FILE__, __LINE__, #call, "%s", (err)->msg);                         \
    } while (0)
/* The call fails with this status, and the sentence holds `part`. */
#define CHECK_FAILS(call, status, err, part)                                                                 \
    do {                                                                                                     \
        mx_status st_ = (call);                                                                              \
        if (st_ != (status) || !strstr((err)->msg, part))                                                    \
            mx_test_fail(__FILE__, __LINE__, #call, "status %d, \"%s\" should hold \"%s\"", st_, (err)->msg, \
                         part);                                                                              \
    } while (0)
/* Relative 2-norm of the difference is at most tol; a value that is not finite fails. */
#define CHECK_CLOSE(got, want, n, tol, ...)                                                                  \
    do {                                                                                                     \
        double d_ = mx_test_distance(got, want, n);                                                          \
        if (!(d_ <= (tol))) {                                                                                \
            fprintf(stderr, "# relative distance %g > %g\n", d_, (double)(tol));                             \
            mx_test_fail(__FILE__, __LINE__, #got, "" __VA_ARGS__);                                          \
        }                                                                                                    \
    } while (0)
#define SKIP(...) mx_test_skip(__VA_ARGS__)

void mx_test_fail(const char *file, int line, const char *what, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void mx_test_skip(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void mx_test_str(const char *file, int line, const char *got, const char *want);
void mx_test_int(const char *file, int line, long long got, long long want);
double mx_test_distance(const float *got, const float *want, size_t n);

/* The repository's root, for fixtures: MX_SOURCE_ROOT of the environment, else the build's. */
const char *mx_test_path(const char *relative); // a static buffer of 8 in turn
/* A fresh empty folder under the build's temporary folder, removed at exit. */
const char *mx_test_tmpdir(void);
/* Deterministic random numbers: uniform 64 bits, [0,1), normal. */
uint64_t mx_test_rand(uint64_t *state);
double mx_test_uniform(uint64_t *state);
double mx_test_normal(uint64_t *state);

#endif
