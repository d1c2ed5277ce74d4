#include "test.h"
#include "base/file.h"
#include <unistd.h>

struct CMUnitTest mx_tests[MX_TEST_MAX];
int mx_n_test;

void mx_test_fail(const char *file, int line, const char *what, const char *fmt, ...) {
    fprintf(stderr, "# %s:%d: %s", file, line, what);
    if (*fmt) {
        va_list ap;
        va_start(ap, fmt);
        fputs(": ", stderr);
        vfprintf(stderr, fmt, ap);
        va_end(ap);
    }
    fputc('\n', stderr);
    _fail(file, line);
}

void mx_test_skip(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    fputs("# SKIP ", stderr);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    _skip("", 0);
}

void mx_test_str(const char *file, int line, const char *got, const char *want) {
    if (!got || strcmp(got, want))
        mx_test_fail(file, line, "string", "got \"%s\", want \"%s\"", got ? got : "NULL", want);
}

void mx_test_int(const char *file, int line, long long got, long long want) {
    if (got != want) mx_test_fail(file, line, "number", "got %lld, want %lld", got, want);
}

double mx_test_distance(const float *got, const float *want, size_t n) {
    double diff = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        diff += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        norm += (double)want[i] * want[i];
    }
    return norm > 0 ? sqrt(diff / norm) : sqrt(diff);
}

const char *mx_test_path(const char *relative) {
    static char bufs[8][4096];
    static int next;
    const char *root = getenv("MX_SOURCE_ROOT");
    char *buf = bufs[next++ % 8];
    snprintf(buf, sizeof bufs[0], "%s/%s", root ? root : MX_TEST_ROOT, relative);
    return buf;
}

static char tmpdir[64];
static void remove_tmpdir(void) { mx_remove_tree(tmpdir, NULL); }

const char *mx_test_tmpdir(void) {
    if (!*tmpdir) {
        strcpy(tmpdir, "/tmp/mlxcel-test-XXXXXX");
        if (!mkdtemp(tmpdir)) mx_test_fail(__FILE__, __LINE__, tmpdir, "cannot be made");
        atexit(remove_tmpdir);
    }
    static char sub[8][128]; // a new one each call, so that tests do not meet
    static int next;
    char *buf = sub[next % 8];
    snprintf(buf, sizeof sub[0], "%s/%d", tmpdir, next++);
    if (mx_mkdirs(buf, NULL) != MX_OK) mx_test_fail(__FILE__, __LINE__, buf, "cannot be made");
    return buf;
}

uint64_t mx_test_rand(uint64_t *state) { // splitmix64
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

double mx_test_uniform(uint64_t *state) { return (double)(mx_test_rand(state) >> 11) * 0x1p-53; }

double mx_test_normal(uint64_t *state) { // Box and Muller
    double u = 1 - mx_test_uniform(state), v = mx_test_uniform(state);
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

/* `program [FILTER]`: only tests whose name matches the pattern, as cmocka writes it (* and ?). */
int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return _cmocka_run_group_tests(mx_path_base(argv[0]), mx_tests, (size_t)mx_n_test, NULL, NULL) ? 1 : 0;
}
